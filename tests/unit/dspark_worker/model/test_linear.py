"""Linear layers behind one verb."""

import torch

from dspark_worker.model.linear import GroupedLinear, PlainLinear


def test_a_plain_layer_maps_any_leading_dims() -> None:
    y = PlainLinear(torch.tensor([[1.0, 2.0]]))(torch.ones(3, 4, 2))
    assert y.shape == (3, 4, 1)
    assert torch.equal(y, torch.full((3, 4, 1), 3.0))


def test_each_group_of_inputs_meets_its_own_weight() -> None:
    weight = torch.tensor([[[1.0, 0.0]], [[0.0, 10.0]]])
    x = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    assert GroupedLinear(weight)(x).tolist() == [[[1.0], [40.0]]]
