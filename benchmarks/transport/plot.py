"""A plot of round trips over sizes, both logarithmic, as SVG and nothing but text."""

import math
from collections.abc import Mapping
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 820, 460, 70, 20, 200, 50
COLOURS = ("#1b9e77", "#66a61e", "#d95f02", "#e6ab02", "#7570b3", "#e7298a", "#a6761d", "#666666")


def svg(best: Mapping[str, Mapping[str, float]], sizes: Mapping[str, int]) -> str:
    """`best`: seconds by contender and size; `sizes`: bytes by size."""
    times = [t for one in best.values() for t in one.values()]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    first, last = (math.log10(n) for n in (min(sizes.values()), max(sizes.values())))

    def x(n_bytes: float) -> float:
        return LEFT + (math.log10(n_bytes) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(seconds: float) -> float:
        share = (math.log10(seconds) - low) / (high - low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(f'<path d="M{LEFT} {at:.0f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        label = f"{10 ** (power + 6):g} µs" if power < -3 else f"{10 ** (power + 3):g} ms"
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.0f}" text-anchor="end">{label}</text>')
    for name, n_bytes in sizes.items():
        at = x(n_bytes)
        parts.append(
            f'<text x="{at:.0f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">'
            f"{escape(name)}</text>"
        )
    for place, (name, one) in enumerate(best.items()):
        colour = COLOURS[place % len(COLOURS)]
        points = " ".join(f"{x(sizes[size]):.0f},{y(t):.0f}" for size, t in one.items())
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        at = TOP + 14 + 18 * place
        parts.append(
            f'<text x="{WIDTH - RIGHT + 12}" y="{at}" fill="{colour}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])
