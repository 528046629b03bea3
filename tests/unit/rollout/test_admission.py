"""Who starts when."""

import msgspec
import pytest

from asyncrl.rollout.admission import Admission, Running
from tests.unit.rollout.tiny import ask


def names(rows: list[Running]) -> list[str]:
    return [row.request.uid for row in rows]


def rows(*numbers: int) -> list[Running]:
    return [Running(ask(number, 1), 5) for number in numbers]


def test_first_come_first_served_into_free_slots() -> None:
    admission = Admission(3, waves=False)
    admission.add(rows(5, 2, 9, 1))
    assert names(admission.take(rows(90))) == ["u5", "u2"]
    assert admission.take(rows(90, 91, 92)) == []
    back = admission.take(rows(90, 91))
    admission.put_back(back + rows(7))
    assert names(admission.take([])) == ["u9", "u7", "u1"]


def test_waves_are_cut_in_key_order_and_wait_for_one_another() -> None:
    admission = Admission(2, waves=True)
    admission.add(rows(5, 2, 1))
    assert names(admission.take([])) == ["u1", "u2"]
    admission.add(rows(0, 3))
    assert admission.take(rows(90)) == []
    assert names(admission.take([])) == ["u5"]
    assert names(admission.take([])) == ["u0", "u3"]
    assert admission.take([]) == []


def test_a_wave_that_was_put_back_starts_again_alone() -> None:
    admission = Admission(2, waves=True)
    admission.add(rows(1, 2, 3))
    [first, second] = admission.take([])
    admission.put_back([second])
    assert names(admission.take([])) == ["u2"]
    assert names(admission.take([])) == ["u3"]
    assert first.request.uid == "u1"


def test_sessions_are_ordered_by_number() -> None:
    admission = Admission(20, waves=True)
    admission.add(Running(ask(0, 1, session=session), 5) for session in (10, 9, 2))
    assert [row.request.session for row in admission.take([])] == ["2", "9", "10"]


def test_removing_takes_from_every_wave() -> None:
    admission = Admission(2, waves=True)
    admission.add(rows(1, 2, 3, 4, 5))
    admission.take([])
    assert names(admission.remove({"r3_0", "r4_0"})) == ["u3", "u4"]
    assert len(admission) == 1
    assert names(admission.remove(None)) == ["u5"]
    assert admission.take([]) == []


def urgent(*numbers: int) -> list[Running]:
    return [Running(msgspec.structs.replace(each.request, urgent=True), 5) for each in rows(*numbers)]


@pytest.mark.parametrize("waves", [False, True])
def test_what_is_urgent_runs_alone_and_the_others_go_on_where_they_were(waves: bool) -> None:
    admission = Admission(2, waves=waves)
    admission.add(rows(1, 2, 3))
    running = admission.take([])
    assert admission.in_the_way(running) == []
    admission.add(urgent(7, 8, 9))
    admission.add(rows(4))
    assert admission.in_the_way(running) == [0, 1]
    admission.put_back(running)
    first = admission.take([])
    assert names(first) == ["u7", "u8"]
    assert names(admission.take([])) == ["u9"]
    # The last urgent one still runs in one of two slots: the other stays empty.
    assert admission.take(urgent(9)) == []
    assert admission.in_the_way([*urgent(9), *rows(1)]) == [1]
    assert names(admission.take([])) == ["u1", "u2"]
    assert len(admission) == 2


def test_urgent_requests_can_be_removed_and_wait_in_their_own_order() -> None:
    admission = Admission(4, waves=False)
    admission.add([*rows(1), *urgent(5, 6)])
    assert names(admission.remove({"r5_0", "r1_0"})) == ["u5", "u1"]
    assert names(admission.take([])) == ["u6"]
    assert len(admission) == 0
