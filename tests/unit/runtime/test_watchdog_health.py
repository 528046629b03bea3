"""What is made of the answers to pings."""

from hypothesis import given, settings, strategies as st

from asyncrl.runtime.loop_health import Look, LoopHealth


def test_a_stall_is_told_at_one_interval_at_two_at_its_budget_and_when_it_is_over() -> None:
    health = LoopHealth(1.0, 5.0, 0.0)
    assert health.look(1.0) == Look("answered", 0.0)
    health.sent(1.0)
    assert [health.look(now) for now in (1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0)] == [
        None, Look("stalled", 1.0), None, Look("stuck", 2.0), None, None, Look("over budget", 5.0), None,
    ]  # fmt: skip
    stalled = [health.stalled]
    assert health.since(7.0) == 6.0
    health.answer(7.25)
    assert health.look(7.3) == Look("over", 6.25)
    stalled.append(health.stalled)
    assert stalled == [True, False]
    assert health.since(8.0) == 0.0


def test_a_budget_below_two_intervals_comes_first() -> None:
    health = LoopHealth(1.0, 1.0, 0.0)
    health.sent(0.0)
    assert health.look(1.0) == Look("over budget", 1.0)


def test_a_look_that_comes_late_counts_against_nobody() -> None:
    health = LoopHealth(1.0, 5.0, 0.0)
    health.sent(0.0)
    assert health.look(100.0) == Look("stood still", 99.0)
    assert health.look(101.0) == Look("stalled", 1.0)
    assert health.look(102.0) == Look("stuck", 2.0)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 3)), max_size=12))
def test_every_stall_of_two_intervals_is_told_once_and_its_end_once_and_a_loop_that_answers_is_never_told(
    stalls: list[tuple[int, int]],
) -> None:
    """``stalls`` are (looks without an answer, looks that are answered at once), one look a second."""
    health, now = LoopHealth(1.0, None, 0.0), 0.0
    told: list[str] = []
    for unanswered, answered in stalls:
        for number in range(unanswered + answered):
            if number == unanswered:
                health.answer(now)
            now += 1.0
            seen = health.look(now)
            if seen is not None and seen.finding != "answered":
                told.append(seen.finding)
            if health.due:
                health.sent(now)
                if number >= unanswered:
                    health.answer(now)
    expected = []
    for unanswered, _ in stalls:
        # Before the first stall the ping that is out was answered, so its first look only sends the next one.
        looks = unanswered - 1
        expected += ["stalled"] * (looks >= 1) + ["stuck"] * (looks >= 2) + ["over"] * (looks >= 1)
    assert told == expected
