"""Who starts when."""

from asyncrl.rollout.admission import Admission, Running
from tests.unit.rollout.tiny import ask


def names(rows: list[Running]) -> list[str]:
    return [row.request.uid for row in rows]


def rows(*numbers: int) -> list[Running]:
    return [Running(ask(number, 1), 5) for number in numbers]


def test_first_come_first_served_into_free_slots() -> None:
    admission = Admission(3, waves=False)
    admission.add(rows(5, 2, 9, 1))
    assert names(admission.take(1)) == ["u5", "u2"]
    assert admission.take(3) == []
    back = admission.take(2)
    admission.put_back(back + rows(7))
    assert names(admission.take(0)) == ["u9", "u7", "u1"]


def test_waves_are_cut_in_key_order_and_wait_for_one_another() -> None:
    admission = Admission(2, waves=True)
    admission.add(rows(5, 2, 1))
    assert names(admission.take(0)) == ["u1", "u2"]
    admission.add(rows(0, 3))
    assert admission.take(1) == []
    assert names(admission.take(0)) == ["u5"]
    assert names(admission.take(0)) == ["u0", "u3"]
    assert admission.take(0) == []


def test_a_wave_that_was_put_back_starts_again_alone() -> None:
    admission = Admission(2, waves=True)
    admission.add(rows(1, 2, 3))
    [first, second] = admission.take(0)
    admission.put_back([second])
    assert names(admission.take(0)) == ["u2"]
    assert names(admission.take(0)) == ["u3"]
    assert first.request.uid == "u1"


def test_sessions_are_ordered_by_number() -> None:
    admission = Admission(20, waves=True)
    admission.add(Running(ask(0, 1, session=session), 5) for session in (10, 9, 2))
    assert [row.request.session for row in admission.take(0)] == ["2", "9", "10"]


def test_removing_takes_from_every_wave() -> None:
    admission = Admission(2, waves=True)
    admission.add(rows(1, 2, 3, 4, 5))
    admission.take(0)
    assert names(admission.remove({"r3_0", "r4_0"})) == ["u3", "u4"]
    assert len(admission) == 1
    assert names(admission.remove(None)) == ["u5"]
    assert admission.take(0) == []
