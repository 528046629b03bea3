"""Which groups are taken, dropped and replaced, by hand."""

import pytest

from asyncrl.errors import RunFailed
from asyncrl.trainer.groups import Group
from asyncrl.trainer.sampler import Ask, AsyncSampler, Choice, GroupFilter, SyncSampler
from asyncrl.trajectory import Status

SPREAD, ALIKE = (0.0, 1.0), (1.0, 1.0)


def group(place: int, status: Status = Status.FINISHED, oldest: int | None = 0, metric: tuple[float, ...] = SPREAD) -> Group:
    return Group(f"u{place}", place, 1, status=status, oldest=oldest, metric=metric)


def running(place: int, oldest: int | None = None) -> Group:
    return group(place, Status.RUNNING, oldest, ())


def ask(step: int = 1, count: int = 2, batch: int = 2, later: int = 0) -> Ask:
    return Ask(step=step, count=count, batch=batch, later=later)


def test_sync_takes_the_groups_of_the_step_in_the_order_of_issue() -> None:
    sampler = SyncSampler()
    assert sampler.choose([group(0), running(1)], ask()) == Choice()
    assert sampler.choose([group(0), group(1)], ask()).take == ("u0", "u1")


def test_sync_trains_the_survivors_of_a_failed_group() -> None:
    failed = group(1, Status.FAILURE, metric=(1.0,))
    assert SyncSampler(refill_failed=True).choose([group(0), failed], ask()) == Choice(("u0", "u1"))


def test_sync_replaces_a_group_without_any_row_when_asked_to() -> None:
    gone = group(1, Status.FAILURE, None, ())
    assert SyncSampler().choose([group(0), gone], ask()).take == ("u0", "u1")
    assert SyncSampler(refill_failed=True).choose([group(0), gone], ask()) == Choice(None, {"u1": "failed"}, 1)


def test_the_filter_of_sync_issues_two_for_one_then_drains_and_takes_those_issued_first() -> None:
    sampler = SyncSampler(filter=GroupFilter(max_inflight_batches=2))
    assert sampler.choose([running(0), group(1, metric=ALIKE)], ask()) == Choice(None, {"u1": "zero spread"}, 2)
    # Enough are good, yet the first that was issued still runs.
    assert sampler.choose([running(0), group(2), group(3)], ask()) == Choice()
    assert sampler.choose([group(0), group(2), group(3)], ask()) == Choice(("u0", "u2"), {"u3": "surplus"}, 0)


def test_the_filter_of_sync_keeps_its_credit_until_there_is_room() -> None:
    sampler = SyncSampler(filter=GroupFilter(max_inflight_batches=1))
    alike = [group(0, metric=ALIKE), group(1, metric=ALIKE)]
    assert sampler.choose(alike, ask()) == Choice(None, {"u0": "zero spread", "u1": "zero spread"}, 2)
    assert sampler.choose([running(2), group(3)], ask()).issue == 1
    assert sampler.choose([group(2, metric=ALIKE), group(3), running(4)], ask()).issue == 1


def test_the_filter_of_sync_ends_at_its_number_of_batches() -> None:
    sampler = SyncSampler(filter=GroupFilter(max_inflight_batches=4, max_batches=2))
    alike = [group(0, metric=ALIKE), group(1, metric=ALIKE)]
    assert sampler.choose(alike, ask()).issue == 2
    last = [group(2, metric=ALIKE), group(3)]
    with pytest.raises(RunFailed, match=r"step 1: 1 of 2 groups .* after 4 prompts \(algorithm.filter_groups.max_num_gen_batches = 2\)"):
        sampler.choose(last, ask())


def test_a_filtered_step_counts_anew() -> None:
    sampler = SyncSampler(filter=GroupFilter(max_inflight_batches=4, max_batches=2))
    assert sampler.choose([group(0, metric=ALIKE), group(1)], ask(step=1)).issue == 2
    assert sampler.choose([group(4, metric=ALIKE), group(5)], ask(step=2)).issue == 2


def test_the_filter_of_sync_keeps_what_later_local_updates_of_the_step_take() -> None:
    sampler = SyncSampler(filter=GroupFilter(max_inflight_batches=2))
    first = ask(count=2, batch=4, later=2)
    # Four good ones are needed: with three the step goes on, with a fourth still running it drains.
    assert sampler.choose([group(0), group(1), group(2), group(3, metric=ALIKE)], first) == Choice(None, {"u3": "zero spread"}, 2)
    assert sampler.choose([group(0), group(1), group(2), group(4), running(5)], first) == Choice()
    good = [group(place) for place in (0, 1, 2, 4, 5)]
    assert sampler.choose(good, first) == Choice(("u0", "u1"), {"u5": "surplus"})
    assert sampler.choose(good[2:4], ask(count=2, batch=4)) == Choice(("u2", "u4"))


def test_async_drops_a_failed_group_whole_and_replaces_it() -> None:
    failed = group(0, Status.FAILURE, metric=(1.0,))
    assert AsyncSampler(threshold=8).choose([failed, group(1), group(2)], ask()) == Choice(("u1", "u2"), {"u0": "failed"}, 1)


@pytest.mark.parametrize(("step", "stale"), [(3, False), (4, True)])
def test_a_group_is_stale_when_its_oldest_token_is_more_than_the_threshold_less_one_behind(step: int, stale: bool) -> None:
    # m = 2 allows (k - 1) - version <= 1: version 1 may be trained at step 3, not at step 4.
    choice = AsyncSampler(threshold=2).choose([group(0, oldest=1), running(1, oldest=1), running(2)], ask(step=step))
    assert choice == (Choice(None, {"u0": "stale", "u1": "stale"}, 2) if stale else Choice())


def test_without_a_threshold_nothing_is_stale() -> None:
    assert AsyncSampler(threshold=None).choose([group(0), group(1)], ask(step=100)).take == ("u0", "u1")


def test_the_filter_of_async_keeps_what_is_good() -> None:
    choice = AsyncSampler(threshold=8, filter=True).choose([group(0, metric=ALIKE), group(1), group(2), group(3)], ask())
    assert choice == Choice(("u1", "u2"), {"u0": "zero spread"}, 1)


def test_the_filter_of_async_replaces_no_more_than_its_number_of_batches_allows() -> None:
    sampler = AsyncSampler(threshold=2, filter=True, max_batches=2)
    # Of 2 x 2 prompts the step has had its own two; what is stale counts for no limit.
    alike, stale = [group(place, metric=ALIKE, oldest=1) for place in (1, 2, 3)], group(0, oldest=0)
    choice = sampler.choose([stale, *alike, running(4)], ask(step=3))
    assert choice == Choice(None, {"u0": "stale", "u1": "zero spread", "u2": "zero spread", "u3": "zero spread"}, 3)
    assert sampler.choose([running(5, oldest=2), group(4, metric=ALIKE, oldest=2)], ask(step=3)) == Choice(None, {"u4": "zero spread"})
    with pytest.raises(RunFailed, match=r"step 3: 1 of 2 groups .* after 4 prompts \(algorithm.filter_groups.max_num_gen_batches = 2\)"):
        sampler.choose([group(5, oldest=2)], ask(step=3))
    # The next step has its own.
    assert sampler.choose([group(5, oldest=2), group(6, metric=ALIKE, oldest=2)], ask(step=4)).issue == 1


def test_wait_takes_the_earliest_deadline_first() -> None:
    groups = [group(0, oldest=2), group(1, oldest=1), group(2, oldest=0)]
    choice = AsyncSampler(threshold=3, strategy="wait").choose(groups, ask(step=3))
    # Deadlines 5, 4, 3; the two first are trained, in their order of issue.
    assert choice == Choice(("u1", "u2"))


def test_wait_waits_for_a_running_group_that_no_later_step_may_train() -> None:
    sampler = AsyncSampler(threshold=2, strategy="wait")
    urgent, ready = running(0, oldest=0), [group(1, oldest=1), group(2, oldest=1)]
    # At step 2 its deadline is 0 + 2 = 2: this very step.
    assert sampler.choose([urgent, *ready], ask(step=2)) == Choice()
    assert sampler.choose([group(0, oldest=0), *ready], ask(step=2)).take == ("u0", "u1")


def test_wait_leaves_at_most_a_batch_for_each_later_step() -> None:
    sampler = AsyncSampler(threshold=2, strategy="wait")
    # Five with deadline 3 at step 2: two now, two at step 3, and one too many.
    groups = [group(0, oldest=1), group(1, oldest=1), *(running(place, oldest=1) for place in (2, 3, 4))]
    assert sampler.choose(groups, ask(step=2)) == Choice()
    assert sampler.choose(groups[:4], ask(step=2)).take == ("u0", "u1")
    # A later local update of this step takes the fifth.
    assert sampler.choose(groups, ask(step=2, later=2)).take == ("u0", "u1")
