"""What a run that resumes from a checkpoint finds in the journal: rows as they were, whatever later steps did to them."""

from pathlib import Path

import pytest

from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue import compaction
from asyncrl.transfer_queue.rows import Origin
from asyncrl.transfer_queue.storage import ShardStorage
from tests.unit.transfer_queue.test_journal import AT, opened, put, seen


def compute(storage: ShardStorage, key: str, step: int, name: str, values: list[int]) -> None:
    """What ``step`` made of a row."""
    column = Column.jagged("int64", [values])
    storage.put([key], "train", {name: column}, {}, Origin("rank0", 1.0, step, step - 1, computed=True), overwrite=True)


def test_what_a_later_step_computed_is_forgotten_and_what_it_overwrote_is_back(tmp_path: Path) -> None:
    storage, _ = opened(tmp_path)
    put(storage, "a", [1, 2], n=1)
    compute(storage, "a", 3, "x", [7, 7])
    compute(storage, "a", 3, "y", [8])
    assert seen(opened(tmp_path)[0]) == seen(storage) == {"a": ({"n": 1}, {"x": [[7, 7]], "y": [[8]]})}
    assert seen(opened(tmp_path, resume=3)[0]) == seen(storage)
    resumed, damages = opened(tmp_path, resume=2)
    assert damages == []
    assert seen(resumed) == {"a": ({"n": 1}, {"x": [[1, 2]]})}
    # The step comes again, in another attempt and with other numbers; nothing is in its way.
    resumed.table.check(["a"], "train", {"y": Column.jagged("int64", [[9]])}, None, overwrite=False)


def test_a_row_that_was_given_back_stays_when_a_later_attempt_resumes_from_a_later_step(tmp_path: Path) -> None:
    first, _ = opened(tmp_path)
    put(first, "a", [1], n=1)
    put(first, "b", [2], n=2)
    compute(first, "a", 3, "y", [8])
    first.clear(["a", "b"], "train", retain=3)
    second, _ = opened(tmp_path, resume=2)
    given_back = {"a": ({"n": 1}, {"x": [[1]]}), "b": ({"n": 2}, {"x": [[2]]})}
    assert seen(second) == given_back
    # In this attempt step 3 trains others. Its checkpoint is committed, so what the first attempt did at step 3 must not count.
    second.clear(["b"], "train", retain=4)
    assert seen(opened(tmp_path, resume=4)[0]) == {"a": given_back["a"]}
    third, damages = opened(tmp_path, resume=3)
    assert damages == []
    assert seen(third) == given_back


def test_what_was_overwritten_is_kept_until_a_checkpoint_of_that_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SPARE_BYTES", 0)
    storage, _ = opened(tmp_path, file_bytes=400)
    assert storage.journal is not None
    put(storage, "a", list(range(100)))
    compute(storage, "a", 3, "x", [1])
    put(storage, "other", list(range(100)))
    assert storage.wasteful() is None
    assert seen(opened(tmp_path, resume=2)[0])["a"][1] == {"x": [list(range(100))]}
    storage.journal.committed(3)
    assert storage.journal.oldest() is not None


def test_the_origin_says_that_a_field_was_computed() -> None:
    computed = Origin("rank0", 1.0, 3, 2, computed=True)
    assert [computed.undone(step) for step in (None, 2, 3)] == [False, True, False]
    assert not AT.undone(0)


def test_what_was_overwritten_is_kept_over_a_restart_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SPARE_BYTES", 0)
    storage, _ = opened(tmp_path, file_bytes=400)
    put(storage, "a", list(range(100)), n=1)
    compute(storage, "a", 3, "x", [1])
    put(storage, "other", list(range(100)))
    restarted, _ = opened(tmp_path, file_bytes=400)
    assert restarted.journal is not None
    assert restarted.journal.oldest() is None
    while (file := restarted.wasteful()) is not None:
        restarted.move(file)
    assert seen(opened(tmp_path, resume=2)[0])["a"] == ({"n": 1}, {"x": [list(range(100))]})


def test_a_checkpoint_makes_what_was_overwritten_before_a_restart_final(tmp_path: Path) -> None:
    storage, _ = opened(tmp_path, file_bytes=400)
    put(storage, "a", list(range(100)))
    compute(storage, "a", 3, "x", [1])
    restarted, _ = opened(tmp_path)
    assert restarted.journal is not None
    assert restarted.journal.oldest() is None
    restarted.journal.committed(2)
    assert restarted.journal.oldest() is None
    restarted.journal.committed(3)
    assert restarted.journal.oldest() is not None


def test_rows_of_several_steps_that_were_moved_together_are_undone_one_by_one(tmp_path: Path) -> None:
    storage, _ = opened(tmp_path)
    assert storage.journal is not None
    for key, step in (("old", 2), ("new", 3), ("older", 1)):
        put(storage, key, [step] * 4, n=step)
        compute(storage, key, step, "adv", [10 * step])
    storage.journal.committed(3)
    restarted, _ = opened(tmp_path)
    assert restarted.journal is not None
    restarted.journal.committed(3)
    oldest = restarted.journal.oldest()
    assert oldest is not None
    while not restarted.move(oldest):
        continue
    assert seen(opened(tmp_path)[0]) == seen(storage)
    resumed, damages = opened(tmp_path, resume=2)
    assert damages == []
    assert seen(resumed) == {
        "old": ({"n": 2}, {"x": [[2] * 4], "adv": [[20]]}),
        "new": ({"n": 3}, {"x": [[3] * 4]}),
        "older": ({"n": 1}, {"x": [[1] * 4], "adv": [[10]]}),
    }
    assert [resumed.table.origins(key, "train")["adv"].step for key in ("old", "older")] == [2, 1]
    assert seen(opened(tmp_path)[0]) == seen(resumed)
