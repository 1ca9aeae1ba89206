"""Training of the small engine's drafter: what the tiny target goes on to say, from its tap rows.

The mathematics is the worker's own (`dspark_worker.model`): its layers are assembled by its own
loader from weights that are still being learnt, each passed through the release format (fp8 tiles,
packed fp4) with a straight-through gradient, so that what is written is what was trained.

The demo's drafter is also a gauge: each of the classical mistakes of an engine or a worker has to
show in its acceptance. So some of the steps ask, by a hinge, that drafts made with a mistake be
worse than a bound; a large model is that sensitive by itself.
"""

import random
from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor

from dspark_worker.model.attention import Attention
from dspark_worker.model.block import Block, Context, load_block
from dspark_worker.model.context_kv import context_kv
from dspark_worker.model.dequant import TILE, fp8_tiles
from dspark_worker.model.drafter import Model
from dspark_worker.model.heads import load_heads
from dspark_worker.model.kv_quant import KvQuant, through_cache_
from dspark_worker.model.rope import make_rope
from dspark_worker.model.streams import Mixer, Mixing, collapse
from dspark_worker.model.weights import Weights
from dsparkctl.checkpoint.model_config import ModelConfig
from dsparkctl.checkpoint.tensors import Expected, Kind, expected_tensors
from examples.make_tiny_checkpoint import E2M1, as_fp8
from examples.tiny_target_training import groups, schedule

SHARED = ("embed.weight", "head.weight")
"""The target's own, which stay as they are (§2)."""

MISTAKE_COST = 4.0
"""Nats that a mistake must cost at the first two drafts; ln 20 is a guess within a class."""


class Mistake(Enum):
    """What an engine or a worker gets wrong (pitfalls 1, 3, 6 and 7 of the specification's §13)."""

    NONE = "none"
    EARLY = "the block stands one position early"
    CAUSAL = "a query sees no later query of its block"
    TAPS = "each tap is the layer's before it"
    FFN_NORM = "the gains of ffn_norm are ones"


class Corpus(NamedTuple):
    """Texts that the target went on with, and its taps of them."""

    tokens: Tensor
    """int64 [B, S]"""
    rows: Tensor
    """bf16 [B, S, T·D]"""
    wrong_rows: Tensor
    """The same of layers one lower."""
    first_anchor: int
    """Where the prompts end."""


class LiveWeights(Weights):
    """What the worker's loader takes its tensors from: parameters instead of files."""

    def __init__(self, parameters: Mapping[str, Tensor], norm_eps: float) -> None:
        super().__init__({}, {}, torch.device("cpu"), torch.float32, norm_eps)
        self._parameters = parameters

    def matrix(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        return self._parameters[name]


def through_release(parameters: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """All weights as a release file gives them back; gradients pass as if nothing had happened."""
    kinds = {expected.name: expected.kind for expected in expected_tensors(config)}
    of = {kind: [n for n in parameters if kinds[n] is kind] for kind in Kind}
    stored: dict[str, Tensor] = {}
    with torch.no_grad():
        stored |= {name: parameters[name].bfloat16().float() for name in of[Kind.FLOAT]}
        stored |= {name: fp8_tiles(*as_fp8(parameters[name])) for name in of[Kind.DENSE]}
        experts = torch.cat([parameters[name].flatten() for name in of[Kind.EXPERT]])
        parts = nearest_fp4(experts.view(-1, TILE)).flatten()
        sizes = [parameters[name].numel() for name in of[Kind.EXPERT]]
        for name, part in zip(of[Kind.EXPERT], torch.split(parts, sizes), strict=True):
            stored[name] = part.view_as(parameters[name])
        lost = {name: stored[name] - weight for name, weight in parameters.items()}
    return {name: weight + lost[name] for name, weight in parameters.items()}


def nearest_fp4(groups: Tensor) -> Tensor:
    """[n, 32] weights of one scale each -> the values that packed fp4 holds of them.

    What `fp4_packed(*as_fp4(...))` says, without packing: every training step does this.
    """
    least = groups.abs().amax(-1, keepdim=True) / E2M1[-1]
    mantissa, exponent = torch.frexp(least)
    exponent = exponent - (mantissa == 0.5).to(exponent.dtype)
    scale = torch.ldexp(torch.ones_like(least), exponent)
    codes = torch.bucketize((groups / scale).abs(), (E2M1[1:] + E2M1[:-1]) / 2)
    nearest: Tensor = E2M1[codes] * scale * groups.sign()
    return nearest


class SmoothMixer(Mixer):
    """The worker's MIX without its in-place arithmetic, which no gradient survives."""

    def coefficients(self, u: Tensor) -> Mixing:
        c, eps = self.n_streams, self.hc_eps
        pre = torch.sigmoid(u[:, :c] * self.scale[0] + self.base[:c]) + eps
        post = 2 * torch.sigmoid(u[:, c : 2 * c] * self.scale[1] + self.base[c : 2 * c])
        logits = u[:, 2 * c :] * self.scale[2] + self.base[2 * c :]
        m = torch.softmax(logits.view(-1, c, c), dim=-1) + eps
        m = m / (m.sum(-2, keepdim=True) + eps)
        for _ in range(self.iters - 1):
            m = m / (m.sum(-1, keepdim=True) + eps)
            m = m / (m.sum(-2, keepdim=True) + eps)
        return Mixing(pre, post, m)


class CachedAttention(Attention):
    """The worker's ATTN, with a gradient through the cache format."""

    def kv(self, x: Tensor, turns: Tensor) -> Tensor:
        exact = self._replace(kv_quant=KvQuant.NONE)
        vectors = Attention.kv(exact, x, turns)
        with torch.no_grad():
            lost = through_cache_(vectors.clone(), self.kv_quant, self.rope_dim) - vectors
        return vectors + lost


class CausalAttention(CachedAttention):
    """The mistake: a query sees no later query of its own block."""

    def attend(self, q: Tensor, keys: Tensor, hidden: Tensor | None) -> Tensor:
        n_queries = q.shape[1] // self.n_heads
        later = torch.ones(n_queries, n_queries, dtype=torch.bool).triu(1)
        padded = F.pad(later, (keys.shape[1] - n_queries, 0)).repeat_interleave(self.n_heads, 0)
        return super().attend(q, keys, padded if hidden is None else padded | hidden)


def assemble(
    parameters: Mapping[str, Tensor], config: ModelConfig, kv_quant: KvQuant, mistake: Mistake
) -> Model:
    """The worker's model over the parameters as they stand."""
    weights = LiveWeights(parameters, config.norm_eps)
    attention = CausalAttention if mistake is Mistake.CAUSAL else CachedAttention

    def trained(block: Block) -> Block:
        norm = block.ffn_norm
        if mistake is Mistake.FFN_NORM:
            norm = norm._replace(weight=torch.ones_like(norm.weight))
        return block._replace(
            attn_mixer=SmoothMixer(*block.attn_mixer),
            ffn_mixer=SmoothMixer(*block.ffn_mixer),
            attention=attention(*block.attention),
            ffn_norm=norm,
        )

    blocks = tuple(
        trained(load_block(weights, s, config, kv_quant)) for s in range(config.n_layers)
    )
    return Model(
        embed=weights.matrix("embed.weight"),
        main_proj=weights.linear("mtp.0.main_proj"),
        main_norm=weights.norm("mtp.0.main_norm"),
        blocks=blocks,
        context_kv=context_kv([block.attention for block in blocks]),
        heads=load_heads(weights, config),
        rope=make_rope(config.rope_dim, config.rope_theta, torch.device("cpu")),
    )


class Blocks(NamedTuple):
    """Where b blocks stand, all int64 [b]."""

    text: Tensor
    anchor: Tensor
    """Place of the anchor in its text."""
    held: Tensor
    """Rows of the window that are held, 0..W."""

    def truth(self, corpus: Corpus, n_spec: int) -> Tensor:
        """[b, N + 1] the anchor and the tokens behind it."""
        places = self.anchor.unsqueeze(1) + torch.arange(n_spec + 1)
        return corpus.tokens[self.text.unsqueeze(1), places]

    def first(self, n: int) -> "Blocks":
        return Blocks(self.text[:n], self.anchor[:n], self.held[:n])


class Drafts(NamedTuple):
    """What b blocks say of the N tokens behind their anchors."""

    logits: Tensor
    """[b, N, V], each under the true token before it"""
    seen: Tensor
    """[b, N, D + m] what the confidence head looks at"""
    conf_logit: Tensor
    """[b, N]"""


def draft(
    model: Model,
    config: ModelConfig,
    corpus: Corpus,
    blocks: Blocks,
    *,
    shift: int = 0,
    mistake: Mistake = Mistake.NONE,
) -> Drafts:
    """One forward over all blocks; `shift` is the position of a text's first token."""
    n_spec, window = config.num_spec, config.window
    n_blocks = len(blocks.text)
    first = blocks.anchor.unsqueeze(1) - (1 if mistake is Mistake.EARLY else 0)
    rows = corpus.wrong_rows if mistake is Mistake.TAPS else corpus.rows
    key_pos = first + torch.arange(-window, 0)
    main_x = model.main_norm(model.main_proj(rows[blocks.text.unsqueeze(1), key_pos].float()))
    turns = model.rope.at(key_pos + shift)
    missing = torch.arange(window) < window - blocks.held.unsqueeze(1)
    context = Context(
        model.rope.at(first + torch.arange(n_spec) + shift),
        F.pad(missing, (0, n_spec)).unsqueeze(1),
    )

    given = blocks.truth(corpus, n_spec)[:, :-1]
    ids = torch.full((n_blocks, n_spec), config.noise_token_id)
    ids[:, 0] = given[:, 0]
    tokens = model.embed[ids.flatten()]
    streams = tokens.unsqueeze(1).repeat(1, config.n_streams, 1)
    pre = torch.zeros(len(tokens), config.n_streams)
    pre[:, 0] = 1.0
    for block in model.blocks:
        streams, pre = block(streams, pre, block.attention.kv(main_x, turns), context, None)
    hidden = collapse(streams, pre).view(n_blocks, n_spec, -1)

    heads = model.heads
    embedded = heads.markov_embed[given]
    logits = heads.base_logits(hidden) + F.linear(embedded, heads.markov_head)
    seen = torch.cat((hidden, embedded), dim=-1)
    return Drafts(logits, seen, (seen * heads.confidence).sum(-1))


def initial(
    config: ModelConfig, embed: Tensor, head: Tensor, generator: torch.Generator
) -> dict[str, Tensor]:
    """Where training begins, with the target's embeddings and head."""
    parameters = {
        expected.name: _first_weight(expected, config, generator)
        for expected in expected_tensors(config)
        if not expected.optional
    }
    return {**parameters, **dict(zip(SHARED, (embed, head), strict=True))}


def _first_weight(expected: Expected, config: ModelConfig, generator: torch.Generator) -> Tensor:
    noise = torch.randn(expected.shape, generator=generator)
    name = expected.name
    if name.endswith("ffn_norm.weight"):
        return 0.5 * torch.exp(0.8 * noise)  # gains of large models are far from 1 as well
    if name.endswith("norm.weight"):
        return torch.ones(expected.shape)
    if name.endswith("_scale"):
        return torch.full(expected.shape, 0.3)
    if name.endswith("_base"):
        c = config.n_streams
        base = 0.5 * noise
        base[2 * c :] += 2.0 * torch.eye(c).flatten()
        return base
    if name.endswith(("bias", "attn_sink")):
        return 0.1 * noise
    if name.endswith(("markov_head.embed.weight", "markov_head.head.weight")):
        return 0.3 * noise
    if name.endswith("confidence_head.proj.weight"):
        return torch.zeros(expected.shape)
    depth = 0.5 if name.endswith(("wo_b.weight", "w2.weight")) else 1.0
    weight: Tensor = noise * depth * expected.shape[-1] ** -0.5
    return weight


class Lesson(NamedTuple):
    """How long and how hard."""

    n_steps: int
    batch: int
    lr: float
    hinge: float
    """Weight of what a mistake must cost; 0 = nobody asks"""
    sureness: float
    """Weight of the confidence head's own loss"""
    free: float
    """Share of the steps that train free weights; the rest train what the release format holds"""


def train_drafter(
    parameters: Mapping[str, Tensor],
    config: ModelConfig,
    corpora: Callable[[int], Corpus],
    lesson: Lesson,
    seed: int,
) -> dict[str, Tensor]:
    """Better parameters, by the release's names. `corpora(n)` gives fresh texts every 250 steps."""
    generator = torch.Generator().manual_seed(seed)
    chance = random.Random(f"drafter-{seed}")
    learnt = {
        name: weight.clone().requires_grad_()
        for name, weight in parameters.items()
        if name not in SHARED
    }
    parameters = {**parameters, **learnt}
    optimiser = torch.optim.AdamW(groups(learnt, decay=0.01), lr=lesson.lr, betas=(0.9, 0.98))
    for step in range(lesson.n_steps):
        if step % 250 == 0:
            corpus = corpora(step // 250)
        for group in optimiser.param_groups:
            group["lr"] = lesson.lr * schedule(step, lesson.n_steps)
        is_stored = step >= lesson.free * lesson.n_steps
        weights = through_release(parameters, config) if is_stored else parameters
        kv_quant = chance.choice((KvQuant.NONE, KvQuant.V4_RECORD_64))
        blocks = _blocks(corpus, config, lesson.batch, generator)
        truth = blocks.truth(corpus, config.num_spec)[:, 1:]
        shift = chance.randrange(512)

        model = assemble(weights, config, kv_quant, Mistake.NONE)
        drafts = draft(model, config, corpus, blocks, shift=shift)
        right = drafts.logits.argmax(-1) == truth
        sure = F.binary_cross_entropy_with_logits(drafts.conf_logit, right.float())
        loss = _surprise(drafts, truth).mean() + lesson.sureness * sure
        if lesson.hinge and step > lesson.n_steps // 10:
            mistake = list(Mistake)[1 + step % (len(Mistake) - 1)]
            few = lesson.batch // 2
            spoilt = assemble(weights, config, kv_quant, mistake)
            wrong = draft(spoilt, config, corpus, blocks.first(few), shift=shift, mistake=mistake)
            cost = _surprise(wrong, truth[:few])[:, :2]
            loss = loss + lesson.hinge * F.relu(MISTAKE_COST - cost).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(list(learnt.values()), 1.0)
        optimiser.step()
        if step % 100 == 0 or step == lesson.n_steps - 1:
            accepted = right.float().cumprod(1).sum(1).mean()
            print(f"drafter step {step} loss {loss.item():.3f} accepted {accepted:.2f}")  # noqa: T201
    return {name: t.detach() for name, t in parameters.items()}


def calibrate(
    parameters: Mapping[str, Tensor], config: ModelConfig, corpus: Corpus, n_blocks: int, seed: int
) -> dict[str, Tensor]:
    """The same drafter with a confidence head fitted to it: a logistic regression, all else fixed.

    In training nearly every draft was right at last, and a confidence learnt there is never low.
    `corpus` should be hard.
    """
    generator = torch.Generator().manual_seed(seed)
    model = assemble(
        through_release(parameters, config), config, KvQuant.V4_RECORD_64, Mistake.NONE
    )
    seen, right = [], []
    with torch.no_grad():
        for start in range(0, n_blocks, 64):
            blocks = _blocks(corpus, config, min(64, n_blocks - start), generator)
            drafts = draft(model, config, corpus, blocks)
            truth = blocks.truth(corpus, config.num_spec)[:, 1:]
            is_right = drafts.logits.argmax(-1) == truth
            # A draft behind a refused one is never judged.
            judged = torch.cat((torch.ones_like(is_right[:, :1]), is_right[:, :-1]), 1)
            judged = judged.cumprod(1).bool()
            seen.append(drafts.seen[judged])
            right.append(is_right[judged].float())
    inputs, labels = torch.cat(seen), torch.cat(right)
    name = f"mtp.{config.n_layers - 1}.confidence_head.proj.weight"
    weight = torch.zeros_like(parameters[name]).requires_grad_()
    solver = torch.optim.LBFGS([weight], max_iter=200, line_search_fn="strong_wolfe")
    width = inputs.std(0)

    def loss() -> Tensor:
        solver.zero_grad()
        fit = F.binary_cross_entropy_with_logits(inputs @ weight[0], labels)
        total: Tensor = fit + 1e-3 * (weight[0] * width).square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    solver.step(loss)  # type: ignore[no-untyped-call]
    print(f"confidence: {labels.mean():.3f} right, loss {loss().item():.3f}")  # noqa: T201
    return {**parameters, name: weight.detach()}


def _blocks(corpus: Corpus, config: ModelConfig, batch: int, generator: torch.Generator) -> Blocks:
    """Anywhere behind the prompts; one window in five is partial, as after a rollback."""
    n_texts, length = corpus.tokens.shape
    anchors = torch.arange(corpus.first_anchor, length - config.num_spec)
    held = torch.randint(1, config.window + 1, (batch,), generator=generator)
    whole = torch.rand(batch, generator=generator) < 0.8
    return Blocks(
        torch.randint(n_texts, (batch,), generator=generator),
        anchors[torch.randint(len(anchors), (batch,), generator=generator)],
        torch.where(whole, config.window, held),
    )


def _surprise(drafts: Drafts, truth: Tensor) -> Tensor:
    """Cross-entropy [b, N] of the true tokens."""
    logits = drafts.logits.transpose(1, 2)
    surprise: Tensor = F.cross_entropy(logits, truth, reduction="none")
    return surprise
