"""Routing and experts at their edges (spec §5.4)."""

import torch

from dspark_worker.model.experts import Expert, Experts, Router
from dspark_worker.model.linear import PlainLinear


def identity_expert(factor: float, limit: float = 10.0) -> Expert:
    eye = PlainLinear(torch.eye(4))
    return Expert(eye, PlainLinear(factor * torch.eye(4)), eye, limit)


def router(bias: list[float], n_active: int, gate: torch.Tensor | None = None) -> Router:
    gate = torch.zeros(len(bias), 4) if gate is None else gate
    return Router(gate, torch.tensor(bias), n_active, 1.5)


def test_equal_scores_take_the_lowest_ids() -> None:
    chosen, weights = router([0.0] * 40, 3)(torch.ones(2, 4))
    assert chosen.tolist() == [[0, 1, 2]] * 2
    assert torch.allclose(weights, torch.full((2, 3), 0.5))


def test_the_bias_selects_and_never_weighs() -> None:
    gate = torch.zeros(3, 4)
    gate[0] = 1.0
    chosen, weights = router([0.0, 5.0, 4.0], 2, gate)(torch.ones(1, 4))
    assert chosen.tolist() == [[1, 2]]
    assert torch.allclose(weights, torch.full((1, 2), 0.75))


def test_the_gate_is_clamped_from_above_only_and_up_on_both_sides() -> None:
    x = torch.tensor([[50.0, -50.0, 1.0, 0.0]])
    g, u = torch.tensor([2.0, -50.0, 1.0, 0.0]), torch.tensor([2.0, -2.0, 1.0, 0.0])
    assert torch.allclose(identity_expert(1.0, limit=2.0)(x), torch.nn.functional.silu(g) * u)


def test_every_token_gets_its_own_experts_in_one_grouped_pass() -> None:
    """Three tokens, each sent to another expert, beside a shared expert that is not scaled."""
    gate = 9 * torch.eye(4)[:3]
    experts = Experts(
        router([0.0] * 3, 1, gate),
        tuple(identity_expert(factor) for factor in (1.0, 10.0, 100.0)),
        identity_expert(1000.0),
    )
    x = torch.eye(4)[[2, 0, 1]]
    inner = torch.nn.functional.silu(torch.tensor(1.0))
    expected = x * inner * (1000 + 1.5 * torch.tensor([[100.0], [1.0], [10.0]]))
    assert torch.allclose(experts(x), expected)


def test_a_token_that_is_not_finite_stays_alone() -> None:
    experts = Experts(router([0.0, 0.1], 1), (identity_expert(1.0),) * 2, identity_expert(1.0))
    x = torch.ones(3, 4)
    clean = experts(x)
    x[1] = float("nan")
    y = experts(x)
    assert torch.equal(y[[0, 2]], clean[[0, 2]])
    assert y[1].isnan().all()
