"""What a round costs on paper: bytes over a link, weights over a memory, and the round trip.

Decides the formula and its inputs, so that an operator can put in numbers of his own. Pure. It is a
floor: the bytes that have to move, at the speeds that are given; `bench round` measures the rest.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

MB: Final = 1e6


@dataclass(frozen=True, slots=True)
class Inputs:
    """Of the machine and of the model; the defaults are the live ones (§2, §3, §8)."""

    link_gbit: float = 40.0
    link_share: float = 0.92
    """Of the link's rate that payload gets."""
    rtt_us: float = 60.0
    """Of a PING over the link: `dsparkctl probe --from`."""
    memory_gb_s: float = 936.0
    """Of the worker's GPU; a 3090 has 936."""
    memory_share: float = 0.85
    """Of it that the kernels reach."""
    hidden: int = 5120
    n_taps: int = 3
    vocab_size: int = 129_280
    window: int = 128
    n_layers: int = 3
    n_experts: int = 128
    n_active_experts: int = 3
    expert_hidden: int = 2304
    attention_weights: float = 126.5e6
    """Of one layer."""
    markov_rank: int = 256
    bits_main: float = 5.0
    bits_attention: float = 5.0
    bits_experts: float = 4.0
    bits_head: float = 6.0
    has_markov_cache: bool = True

    @property
    def row_bytes(self) -> int:
        """A tap row: n_taps x hidden bf16 values (§3)."""
        return self.n_taps * self.hidden * 2


LIVE: Final = Inputs()


class Cost(NamedTuple):
    """One kind of round."""

    name: str
    n_rows: int
    wire_mb: float
    wire_ms: float
    read_mb: float
    """Weights that the worker reads."""
    draft_ms: float
    total_ms: float


def experts_touched(inputs: Inputs, n_tokens: int) -> float:
    """How many different experts of a layer n tokens meet, routed evenly: E (1 - (1 - k/E)^n)."""
    share = inputs.n_active_experts / inputs.n_experts
    return float(inputs.n_experts * (1 - (1 - share) ** n_tokens))


def weights_mb(inputs: Inputs, n_requests: int, n_spec: int) -> float:
    """What a draft of n blocks reads: main_proj, attention, experts and the shared one, head,
    and the Markov rows (all of them where they are not kept)."""
    one_expert = 3 * inputs.hidden * inputs.expert_hidden * inputs.bits_experts / 8
    n_experts = experts_touched(inputs, n_requests * n_spec) + 1
    main = inputs.n_taps * inputs.hidden * inputs.hidden * inputs.bits_main / 8
    attention = inputs.attention_weights * inputs.bits_attention / 8
    head = inputs.vocab_size * inputs.hidden * inputs.bits_head / 8
    markov = 0.0 if inputs.has_markov_cache else n_spec * inputs.vocab_size * inputs.markov_rank * 2
    layers = inputs.n_layers * (attention + n_experts * one_expert)
    return (main + layers + head + markov) / MB


def cost(inputs: Inputs, name: str, n_requests: int, n_rows: int, n_spec: int) -> Cost:
    """A round of `n_requests` that bring `n_rows` each; `n_spec` 0: rows alone are appended."""
    n_bytes = n_requests * (n_rows * inputs.row_bytes + 32) + 96
    wire_ms = n_bytes * 8 / (inputs.link_gbit * 1e9 * inputs.link_share) * 1e3
    main_mb = inputs.n_taps * inputs.hidden * inputs.hidden * inputs.bits_main / 8 / MB
    read_mb = weights_mb(inputs, n_requests, n_spec) if n_spec else main_mb
    draft_ms = read_mb / (inputs.memory_gb_s * inputs.memory_share)
    total_ms = inputs.rtt_us / 1e3 + wire_ms + draft_ms
    return Cost(name, n_requests * n_rows, n_bytes / MB, wire_ms, read_mb, draft_ms, total_ms)


def table(inputs: Inputs) -> list[Cost]:
    """The rounds of §8.1."""
    found = [
        cost(inputs, f"decode, {n} request{'s' * (n > 1)}", n, rows, 5)
        for n, rows in ((1, 6), (2, 6), (3, 5), (4, 5))
    ]
    return [*found, cost(inputs, "a prefill chunk's last rows", 1, inputs.window, 0)]
