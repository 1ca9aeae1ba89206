"""What the engine is given to do."""

from dsparkctl.engine.workload import MAX_PROMPT, workload


def test_the_same_seed_gives_the_same_requests_and_another_one_others() -> None:
    def told(seed: int) -> list[tuple[int, ...]]:
        return [tuple(request.prompt) for request in workload(seed, 9, 16)]

    assert told(3) == told(3)
    assert told(3) != told(4)


def test_more_requests_do_not_change_the_first_ones() -> None:
    few, many = workload(1, 4, 16), workload(1, 12, 16)
    assert [r.prompt for r in few] == [r.prompt for r in many[:4]]


def test_some_go_on_from_an_earlier_text_and_some_are_preempted_half_way() -> None:
    requests = workload(1, 9, 16)
    for i, request in enumerate(requests):
        assert request.preempt_after == (8 if i % 3 == 1 else None)
        assert len(request.prompt) <= MAX_PROMPT
        before = list(requests[i - 2].prompt) if i % 3 == 2 else []
        assert list(request.prompt[: len(before)]) == before
    assert len({request.request_id for request in requests}) == 9
