"""The one tensor of a round (§4.1, §4.2)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dsparkctl.client.broadcast import Alone, OverEngine, Word
from dsparkctl.client.budget import budget
from dsparkctl.client.fallback import Outcome
from tests.unit.client.fakes import HELLO, SLOTS, N

CPU = torch.device("cpu")


def word() -> Word:
    return Word(SLOTS, N, CPU)


@given(
    n=st.integers(0, SLOTS),
    outcome=st.sampled_from(Outcome),
    data=st.data(),
)
def test_what_is_packed_is_unpacked(n: int, outcome: Outcome, data: st.DataObject) -> None:
    ids = [data.draw(st.integers(0, 2**31 - 1)) for _ in range(n * N)]
    confidence = [data.draw(st.floats(0, 1, width=32)) for _ in range(n * N)]
    ours = word()
    tensor = ours.packed(outcome, ids, confidence).clone()
    drafts = word().unpacked(tensor, n)
    assert Word.outcome(tensor) is outcome
    assert drafts.ids.dtype is torch.int64
    assert drafts.ids.shape == drafts.confidence.shape == (n, N)
    assert drafts.ids.flatten().tolist() == ids
    assert drafts.confidence.flatten().tolist() == confidence


@pytest.mark.parametrize("n", [0, 1, SLOTS])
def test_no_value_of_an_earlier_round_is_left(n: int) -> None:
    """§10: a fallback writes confidences 0.0, never the last round's."""
    ours = word()
    ours.packed(Outcome.DRAFTED, [7] * SLOTS * N, [0.5] * SLOTS * N)
    tensor = ours.packed(Outcome.TIMEOUT, [0] * n * N, [0.0] * n * N)
    assert Word.outcome(tensor) is Outcome.TIMEOUT
    assert not tensor[1:].any()


def test_the_tensor_has_one_shape_and_one_kind_for_every_outcome() -> None:
    ours = word()
    kinds = {
        (tuple(tensor.shape), tensor.dtype)
        for outcome in Outcome
        for n in range(SLOTS + 1)
        for tensor in [ours.packed(outcome, [1] * n * N, [0.5] * n * N)]
    }
    assert kinds == {((1 + 2 * SLOTS * N,), torch.int32)}


def test_the_tensor_is_below_a_kibibyte_at_the_live_terms() -> None:
    """§8.2."""
    tensor = Word(4, 5, CPU).tensor
    assert tensor.numel() * tensor.itemsize == 164
    live = HELLO._replace(max_slots=4, num_spec=5)
    assert tensor.numel() * tensor.itemsize == budget(live).broadcast_bytes < 1024


def test_drafts_are_of_their_own_memory() -> None:
    """vLLM writes −1 into them where it verifies fewer than N."""
    ours = word()
    tensor = ours.packed(Outcome.DRAFTED, [7] * N, [0.5] * N)
    drafts = ours.unpacked(tensor, 1)
    drafts.ids[:, 1:] = -1
    drafts.confidence[:] = 0.0
    again = ours.unpacked(tensor, 1)
    assert again.ids.tolist() == [[7] * N]
    assert again.confidence.tolist() == [[0.5] * N]


def test_a_rank_alone_keeps_its_tensor() -> None:
    tensor = word().tensor
    assert Alone()(tensor) is tensor


def test_the_engines_group_may_answer_with_another_tensor() -> None:
    class Group:
        def broadcast(self, input_: Tensor, src: int = 0) -> Tensor:
            assert src == 0
            return input_ + 1

    assert OverEngine(Group())(word().tensor).tolist() == [1] * (1 + 2 * SLOTS * N)


def test_more_requests_than_the_tensor_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="of 5 requests"):
        word().packed(Outcome.DRAFTED, [1] * 5 * N, [0.5] * 5 * N)
