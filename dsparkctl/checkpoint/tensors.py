"""The tensors a drafter is made of, as data: name, logical shape, and how each may be stored (§2).

One table for everyone who asks: the loader, `checkpoint inspect`, the writer of tiny checkpoints.
The names are the release's own and are matched whole, never by prefix or suffix: `ffn_norm` is not
`ffn`, and `hc_attn_scale` is a parameter, no quantisation scale (pitfalls 1, 10, 15 of §13).
"""

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from dsparkctl.checkpoint.model_config import ModelConfig

PLAIN_DTYPES = ("BF16", "F16", "F32")
TILE = 32
"""An fp8 scale serves a tile of 32×32 weights; an fp4 scale serves 32 inputs of one row."""


class Kind(Enum):
    """How a tensor may be stored beside plain bf16, f16 or f32."""

    FLOAT = "plain only"
    DENSE = "fp8 e4m3 with an e8m0 scale for each 32×32 tile"
    EXPERT = "packed fp4 e2m1 with an e8m0 scale for each 32 inputs"


class Expected(NamedTuple):
    """One tensor of the model."""

    name: str
    shape: tuple[int, ...]
    """Logical: what the weight is once it is unpacked."""
    kind: Kind = Kind.FLOAT
    optional: bool = False
    """Accepted and ignored: the vision bias of the router."""

    @property
    def prefix(self) -> str:
        """The name that a linear layer's further tensors hang on: `P` of `P.weight`."""
        return self.name.removesuffix(".weight")

    @property
    def is_weight(self) -> bool:
        return self.name.endswith(".weight")

    @property
    def scale_name(self) -> str:
        return f"{self.prefix}.scale"


def expected_tensors(config: ModelConfig) -> Iterator[Expected]:
    """Every tensor of a checkpoint of this shape, each exactly once."""
    c = config
    last = f"mtp.{c.n_layers - 1}"
    yield Expected("embed.weight", (c.vocab_size, c.hidden))
    yield Expected("head.weight", (c.vocab_size, c.hidden))
    yield Expected("mtp.0.main_proj.weight", (c.hidden, c.n_taps * c.hidden), Kind.DENSE)
    yield Expected("mtp.0.main_norm.weight", (c.hidden,))
    for layer in range(c.n_layers):
        yield from _layer(c, f"mtp.{layer}")
    yield Expected(f"{last}.norm.weight", (c.hidden,))
    yield Expected(f"{last}.markov_head.embed.weight", (c.vocab_size, c.markov_rank))
    yield Expected(f"{last}.markov_head.head.weight", (c.vocab_size, c.markov_rank))
    yield Expected(f"{last}.confidence_head.proj.weight", (1, c.hidden + c.markov_rank))


def _layer(c: ModelConfig, at: str) -> Iterator[Expected]:
    group_in = c.n_heads * c.head_dim // c.o_groups
    yield Expected(f"{at}.attn_norm.weight", (c.hidden,))
    yield Expected(f"{at}.attn.wq_a.weight", (c.q_rank, c.hidden), Kind.DENSE)
    yield Expected(f"{at}.attn.q_norm.weight", (c.q_rank,))
    yield Expected(f"{at}.attn.wq_b.weight", (c.n_heads * c.head_dim, c.q_rank), Kind.DENSE)
    yield Expected(f"{at}.attn.wkv.weight", (c.head_dim, c.hidden), Kind.DENSE)
    yield Expected(f"{at}.attn.kv_norm.weight", (c.head_dim,))
    yield Expected(f"{at}.attn.attn_sink", (c.n_heads,))
    yield Expected(f"{at}.attn.wo_a.weight", (c.o_groups * c.o_rank, group_in), Kind.DENSE)
    yield Expected(f"{at}.attn.wo_b.weight", (c.hidden, c.o_groups * c.o_rank), Kind.DENSE)
    for sub_layer in ("attn", "ffn"):
        yield Expected(f"{at}.hc_{sub_layer}_fn", (c.mix_width, c.n_streams * c.hidden))
        yield Expected(f"{at}.hc_{sub_layer}_base", (c.mix_width,))
        yield Expected(f"{at}.hc_{sub_layer}_scale", (3,))
    yield Expected(f"{at}.ffn_norm.weight", (c.hidden,))
    yield Expected(f"{at}.ffn.gate.weight", (c.n_experts, c.hidden))
    yield Expected(f"{at}.ffn.gate.bias", (c.n_experts,))
    yield Expected(f"{at}.ffn.gate.bias_vl", (c.n_experts,), optional=True)
    for expert in range(c.n_experts):
        yield from _expert(c, f"{at}.ffn.experts.{expert}", Kind.EXPERT)
    yield from _expert(c, f"{at}.ffn.shared_experts", Kind.DENSE)


def _expert(c: ModelConfig, at: str, kind: Kind) -> Iterator[Expected]:
    yield Expected(f"{at}.w1.weight", (c.expert_hidden, c.hidden), kind)
    yield Expected(f"{at}.w2.weight", (c.hidden, c.expert_hidden), kind)
    yield Expected(f"{at}.w3.weight", (c.expert_hidden, c.hidden), kind)
