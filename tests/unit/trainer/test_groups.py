"""The table of issued groups, event by event."""

from asyncrl.trainer.groups import GroupTable
from asyncrl.trajectory import Status
from asyncrl.transfer_queue.client import Change, Snapshot


def table(*uids: str) -> GroupTable:
    made = GroupTable()
    for place, uid in enumerate(uids):
        made.expect(uid, place, step=1, lease=1)
    return made


def test_a_group_follows_its_marker() -> None:
    groups = table("u0", "u1")
    groups.apply(Change(0, "a", 1, {"u1": {"status": "running", "lease": 1, "oldest_version": 4}, "stranger": {"status": "running"}}))
    groups.apply(Change(0, "a", 2, {"u0": {"status": "failure", "lease": 1, "failures": ["session 1: x"], "metric": [0.5]}}))
    first, second = groups.groups()
    assert (first.status, first.failures, first.metric, first.settled) == (Status.FAILURE, ["session 1: x"], (0.5,), True)
    assert (second.status, second.oldest, second.settled) == (Status.RUNNING, 4, False)
    assert groups.describe() == "1 running, 1 failure"


def test_what_is_said_under_an_earlier_lease_is_passed_over() -> None:
    groups = table("u0")
    groups.expect("u0", 0, step=1, lease=2)
    groups.apply(Change(0, "a", 1, {"u0": {"status": "finished", "lease": 1}}))
    assert not groups.settled()
    groups.apply(Change(0, "a", 2, {"u0": {"status": "finished", "lease": 2}}))
    assert groups.settled() == ["u0"]


def test_a_shard_that_lost_its_rows_names_the_groups_that_went_with_it() -> None:
    groups = table("u0", "u1", "u2")
    groups.stored(["u0", "u1"])
    # u2 was never acknowledged: whoever puts it will hear how that ended.
    lost = groups.apply(Snapshot(1, "b", 0, {"u1": {"status": "running", "lease": 1}}, lost="a"), lambda uid: 1)
    assert lost == ["u0"]
    assert groups.apply(Snapshot(0, "b", 0, {}, lost="a"), lambda uid: 1) == []
    assert groups.apply(Snapshot(1, "b", 0, {}), lambda uid: 1) == []


def test_taken_groups_are_forgotten_with_what_failed_in_them() -> None:
    groups = table("u0", "u1")
    groups.apply(Change(0, "a", 1, {"u0": {"status": "failure", "lease": 1, "failures": ["session 0: gone"]}}))
    assert groups.take(["u0"]) == {"u0": ["session 0: gone"]}
    assert [group.uid for group in groups.groups()] == ["u1"]
