"""Where the numbers of a step go: a tracker that fails is left out, and none changes what the others are told."""

import json
from pathlib import Path

from asyncrl.observe.trackers import FileTracker, Numbers, TrackerSet


class Told:
    """Keeps what it is told; fails at one step, if it is to."""

    def __init__(self, fails_at: int = 0) -> None:
        self._fails_at = fails_at
        self.told: list[tuple[str, int]] = []

    def log(self, step: int, numbers: Numbers) -> None:
        if step == self._fails_at:
            raise ConnectionError("the service does not answer")
        self.told.append(("log", step))

    def resume(self, step: int) -> None:
        self.told.append(("resume", step))

    def finish(self) -> None:
        self.told.append(("finish", 0))


def test_a_tracker_that_fails_is_left_out_with_one_warning_and_the_others_go_on() -> None:
    warned: list[str] = []
    first, bad, last = Told(), Told(fails_at=2), Told()
    trackers = TrackerSet([first, bad, last], warned.append)
    trackers.resume(0)
    for step in (1, 2, 3):
        trackers.log(step, {"loss": 0.5})
    trackers.finish()
    assert bad.told == [("resume", 0), ("log", 1)]
    assert first.told == last.told == [("resume", 0), ("log", 1), ("log", 2), ("log", 3), ("finish", 0)]
    assert warned == ["Told failed and is left out from here: ConnectionError: the service does not answer"]


def test_a_file_holds_each_step_once_and_in_order_after_any_number_of_resumes(tmp_path: Path) -> None:
    def steps() -> list[int]:
        return [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]

    tracker = FileTracker(tmp_path)
    for step in range(5):
        tracker.log(step, {"loss": float("nan")})
    tracker.finish()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')  # killed in the middle of a line
    for after in (3, 1):
        tracker = FileTracker(tmp_path)
        tracker.resume(after)
        assert steps() == list(range(after + 1))
        for step in range(after + 1, 6):
            tracker.log(step, {})
        tracker.finish()
        assert steps() == list(range(6))
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0]) == {"step": 0, "loss": None}
