"""What a resumed run takes over, by hand."""

from asyncrl.trainer.adoption import Adoption, adoption
from asyncrl.trainer.ledger import LedgerState

STATE = LedgerState(order=["u0", "u1", "u2", "u3"], in_flight={"u1": 3, "u2": 3}, trained={"u0": 2}, dropped={"u3": "stale"})


def marker(status: str) -> dict[str, object]:
    return {"is_prompt": True, "status": status, "lease": 1}


def row(version: int = 2) -> dict[str, object]:
    return {"status": "success", "max_global_steps": version}


def test_finished_groups_are_kept_and_running_ones_begin_again() -> None:
    rows = {"u1": marker("finished"), "u1_0_0": row(), "u2": marker("running")}
    assert adoption(STATE, rows, 2, newer=True) == Adoption(finished={"u1": rows["u1"]}, again=["u2"], clear=["u2"])


def test_a_failed_group_has_settled() -> None:
    rows = {"u1": marker("failure"), "u2": marker("failure")}
    assert adoption(STATE, rows, 2, newer=True).finished == rows


def test_what_the_checkpoint_has_trained_or_dropped_is_cleared() -> None:
    # Step 3 cleared u0, and the clear waited for a checkpoint that never came; u3 was dropped before this one.
    rows = {"u0": marker("finished"), "u0_0_0": row(), "u3": marker("finished"), "u3_1_0": row()}
    found = adoption(STATE, rows, 2, newer=True)
    assert found.clear == ["u0", "u0_0_0", "u3", "u3_1_0"]
    assert found.again == ["u1", "u2"]


def test_what_was_issued_after_the_checkpoint_waits_for_its_turn() -> None:
    rows = {"u7": marker("finished"), "u7_0_0": row(3), "u8": marker("pending"), "u9_0_0": row()}
    found = adoption(STATE, rows, 2, newer=True)
    assert found.later == {"u7": rows["u7"]}
    assert found.clear == ["u8", "u9_0_0"]


def test_groups_with_tokens_of_newer_versions_can_be_left_out() -> None:
    rows = {"u1": marker("finished"), "u1_0_0": row(2), "u2": marker("finished"), "u2_0_0": row(2), "u2_1_0": row(3)}
    found = adoption(STATE, rows, 2, newer=False)
    assert (list(found.finished), found.again, found.clear) == (["u1"], ["u2"], ["u2", "u2_0_0", "u2_1_0"])


def test_an_empty_queue_gives_everything_anew() -> None:
    assert adoption(STATE, {}, 2, newer=True) == Adoption(again=["u1", "u2"])
