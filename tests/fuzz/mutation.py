"""Spoilt inputs from good ones, by a seed: for machines and tests without a fuzzer of their own."""

import random
from collections.abc import Iterator, Sequence

_EDGES = (b"\xff" * 4, b"\0" * 4, b"\0\0\0\x80", b"\xff\xff\xff\x7f", b"1e999", b"-1", b"null")


def mutated(seeds: Sequence[bytes], dice: random.Random) -> Iterator[bytes]:
    """For ever."""
    while True:
        data = bytearray(dice.choice(seeds))
        for _ in range(dice.choice((1, 1, 2, 4, 16))):
            at = dice.randrange(len(data) + 1)
            match dice.randrange(7):
                case 0 if data:
                    data[at % len(data)] ^= 1 << dice.randrange(8)
                case 1 if data:
                    data[at % len(data)] = dice.getrandbits(8)
                case 2:
                    data[at:at] = dice.randbytes(dice.randint(1, 8))
                case 3:
                    del data[at : at + dice.randint(1, 16)]
                case 4:
                    edge = dice.choice(_EDGES)
                    data[at : at + len(edge)] = edge
                case 5:
                    other = dice.choice(seeds)
                    data[at:] = other[dice.randrange(len(other) + 1) :]
                case _:
                    data[at:at] = data[at : at + dice.randint(1, 64)]
        yield bytes(data[:65536])
