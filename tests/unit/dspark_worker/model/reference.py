"""The drafter once more: slow, float64, one token at a time, written from the specification alone.

Shares no line with `dspark_worker.model` and no idea of speed: loops where that one batches, dicts
where that one keeps rings. What the two agree on, they do not agree on by accident. Plain weights
only, no rounding, no KV quantisation.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsparkctl.checkpoint.model_config import ModelConfig

Array = NDArray[np.float64]


class Drafted(NamedTuple):
    """One block."""

    ids: list[int]
    confidence: list[float]
    margin: list[float]
    hidden: Array
    """[N, D], before the final norm"""


class Reference:
    """A model of plain weights in float64."""

    def __init__(self, weights: Mapping[str, Array], config: ModelConfig) -> None:
        self.w = weights
        self.c = config

    def draft(
        self, window: Sequence[tuple[int, Array]], anchor_pos: int, token: int, max_model_len: int
    ) -> Drafted:
        """§5 and §6 over `window`, (position, tap row) ascending."""
        c = self.c
        main = [(pos, self.rms(self.linear("mtp.0.main_proj", row), "mtp.0.main_norm"))
                for pos, row in window]  # fmt: skip
        ids = [token] + [c.noise_token_id] * (c.num_spec - 1)
        query_pos = [min(anchor_pos + j, max_model_len - 1) for j in range(c.num_spec)]
        streams = [np.stack([self.w["embed.weight"][i]] * c.n_streams) for i in ids]
        pre = [np.eye(c.n_streams)[0] for _ in ids]
        for s in range(c.n_layers):
            at = f"mtp.{s}"
            keys = [self.kv(s, x, pos) for pos, x in main]
            mixes = [self.mix(x, f"{at}.hc_attn") for x in streams]
            inputs = [self.rms(p @ x, f"{at}.attn_norm") for p, x in zip(pre, streams, strict=True)]
            keys += [self.kv(s, x, pos) for x, pos in zip(inputs, query_pos, strict=True)]
            for j, x in enumerate(inputs):
                streams[j] = self.post(self.attend(s, x, query_pos[j], keys), streams[j], mixes[j])
            for j, (attn_pre, _, _) in enumerate(mixes):
                mix = self.mix(streams[j], f"{at}.hc_ffn")
                x = self.rms(attn_pre @ streams[j], f"{at}.ffn_norm")
                streams[j] = self.post(self.moe(s, x), streams[j], mix)
                pre[j] = mix[0]
        return self.sample(np.stack([p @ x for p, x in zip(pre, streams, strict=True)]), token)

    def sample(self, hidden: Array, token: int) -> Drafted:
        c, last = self.c, f"mtp.{self.c.n_layers - 1}"
        drafted = Drafted([], [], [], hidden)
        for h in hidden:
            e = self.w[f"{last}.markov_head.embed.weight"][token]
            logits = self.linear("head", self.rms(h, f"{last}.norm"))
            logits = logits + self.linear(f"{last}.markov_head.head", e)
            seen = np.concatenate([h, e])
            logit = self.linear(f"{last}.confidence_head.proj", seen)[0]
            token = int(np.argmax(logits))
            second, first = np.sort(logits)[-2:]
            drafted.ids.append(token)
            drafted.confidence.append(float(1 / (1 + np.exp(-logit))))
            drafted.margin.append(float(first - second))
        assert len(drafted.ids) == c.num_spec
        return drafted

    def mix(self, streams: Array, at: str) -> tuple[Array, Array, Array]:
        """§5.1"""
        n, z = self.c.n_streams, streams.reshape(-1)
        u = self.w[f"{at}_fn"] @ z / np.sqrt(np.mean(z * z) + self.c.norm_eps)
        scale, base = self.w[f"{at}_scale"], self.w[f"{at}_base"]
        pre = sigmoid(u[:n] * scale[0] + base[:n]) + self.c.hc_eps
        post = 2 * sigmoid(u[n : 2 * n] * scale[1] + base[n : 2 * n])
        m = (u[2 * n :] * scale[2] + base[2 * n :]).reshape(n, n)
        m = np.exp(m - m.max(1, keepdims=True))
        m = m / m.sum(1, keepdims=True) + self.c.hc_eps
        m = m / (m.sum(0, keepdims=True) + self.c.hc_eps)
        for _ in range(self.c.sinkhorn_iters - 1):
            m = m / (m.sum(1, keepdims=True) + self.c.hc_eps)
            m = m / (m.sum(0, keepdims=True) + self.c.hc_eps)
        return pre, post, m

    def post(self, y: Array, streams: Array, mix: tuple[Array, Array, Array]) -> Array:
        _, post, m = mix
        rows = [
            post[b] * y + sum(m[a, b] * streams[a] for a in range(len(m))) for b in range(len(m))
        ]
        return np.stack(rows)

    def kv(self, s: int, x: Array, pos: int) -> Array:
        """§4: key and value at once."""
        return self.rope(
            self.rms(self.linear(f"mtp.{s}.attn.wkv", x), f"mtp.{s}.attn.kv_norm"), pos
        )

    def rope(self, x: Array, pos: int, sign: int = 1) -> Array:
        """§5.2"""
        r, turned = self.c.rope_dim, x.copy()
        for i in range(r // 2):
            angle = sign * pos * self.c.rope_theta ** (-2 * i / r)
            a, b = len(x) - r + 2 * i, len(x) - r + 2 * i + 1
            turned[a] = x[a] * np.cos(angle) - x[b] * np.sin(angle)
            turned[b] = x[a] * np.sin(angle) + x[b] * np.cos(angle)
        return turned

    def attend(self, s: int, x: Array, pos: int, keys: Sequence[Array]) -> Array:
        """§5.3"""
        c, at = self.c, f"mtp.{s}.attn"
        q = self.linear(f"{at}.wq_b", self.rms(self.linear(f"{at}.wq_a", x), f"{at}.q_norm"))
        outputs = []
        for h, head in enumerate(q.reshape(c.n_heads, c.head_dim)):
            turned = self.rope(head, pos)
            scores = np.array([turned @ key for key in keys]) * c.head_dim**-0.5
            e = np.exp(scores - scores.max())
            total = e.sum() + np.exp(self.w[f"{at}.attn_sink"][h] - scores.max())
            mixed = np.sum([w * key for w, key in zip(e, keys, strict=True)], axis=0) / total
            outputs.append(self.rope(mixed, pos, -1))
        groups = np.concatenate(outputs).reshape(c.o_groups, -1)
        wo_a = self.w[f"{at}.wo_a.weight"].reshape(c.o_groups, c.o_rank, -1)
        z = np.concatenate([w @ o for w, o in zip(wo_a, groups, strict=True)])
        return self.linear(f"{at}.wo_b", z)

    def moe(self, s: int, x: Array) -> Array:
        """§5.4"""
        at = f"mtp.{s}.ffn"
        scores = np.sqrt(np.log1p(np.exp(self.linear(f"{at}.gate", x))))
        ranked = sorted(range(len(scores)), key=lambda e: -(scores + self.w[f"{at}.gate.bias"])[e])
        chosen = ranked[: self.c.n_active_experts]
        total = sum(scores[e] for e in chosen) + 1e-20
        y = self.expert(f"{at}.shared_experts", x, 1.0)
        for e in chosen:
            y = y + self.expert(f"{at}.experts.{e}", x, scores[e] / total * self.c.route_scale)
        return y

    def expert(self, at: str, x: Array, weight: float) -> Array:
        limit = self.c.swiglu_limit
        g = np.minimum(self.linear(f"{at}.w1", x), limit)
        u = np.clip(self.linear(f"{at}.w3", x), -limit, limit)
        return self.linear(f"{at}.w2", g * sigmoid(g) * u * weight)

    def rms(self, x: Array, at: str) -> Array:
        scaled: Array = x / np.sqrt(np.mean(x * x) + self.c.norm_eps) * self.w[f"{at}.weight"]
        return scaled

    def linear(self, at: str, x: Array) -> Array:
        product: Array = self.w[f"{at}.weight"] @ x
        return product


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))
