"""Trackers: each takes the numbers of a step; one that fails is left out with one warning and never stops the run."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

Numbers = Mapping[str, float | int | str | list[float]]


class Tracker(Protocol):
    """One place where numbers go."""

    def log(self, step: int, numbers: Numbers) -> None: ...

    def resume(self, step: int) -> None:
        """The run goes on after ``step``: what an earlier attempt logged beyond it did not happen."""
        ...

    def finish(self) -> None: ...


class JsonLines:
    """A file of JSON objects with a step, one a line, flushed at once. NaN becomes null."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab")

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one object."""
        self._file.write(msgspec.json.encode(record) + b"\n")
        self._file.flush()

    def keep_until(self, step: int) -> None:
        """Drop the objects of later steps, and a torn last line."""
        self._file.close()
        kept = [line for line in self._path.read_bytes().splitlines(keepends=True) if _step_of(line) <= step]
        draft = self._path.with_suffix(".partial")
        draft.write_bytes(b"".join(kept))
        draft.replace(self._path)
        self._file = self._path.open("ab")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _step_of(line: bytes) -> float:
    try:
        return float(msgspec.json.decode(line, type=dict[str, Any])["step"])
    except msgspec.DecodeError:
        return math.inf


class FileTracker:
    """``metrics.jsonl``: one JSON object a step."""

    def __init__(self, folder: Path) -> None:
        self._lines = JsonLines(folder / "metrics.jsonl")

    def log(self, step: int, numbers: Numbers) -> None:
        self._lines.append({"step": step, **numbers})

    def resume(self, step: int) -> None:
        self._lines.keep_until(step)

    def finish(self) -> None:
        self._lines.close()


class TensorBoardTracker:
    """Event files under ``tensorboard/``; lists and texts are left to ``metrics.jsonl``."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # torch is there only on ranks

        self._make: Callable[[int | None], Any] = lambda purge: SummaryWriter(str(folder / "tensorboard"), purge_step=purge)
        self._writer = self._make(None)

    def resume(self, step: int) -> None:
        self._writer.close()
        self._writer = self._make(step + 1)

    def log(self, step: int, numbers: Numbers) -> None:
        for name, value in numbers.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        self._writer.close()


class Generations:
    """``generations.jsonl``: a few sampled answers of each step with their rewards."""

    def __init__(self, folder: Path) -> None:
        self._lines = JsonLines(folder / "generations.jsonl")

    def log(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Append one object per sample."""
        for sample in samples:
            self._lines.append({"step": step, **sample})

    def resume(self, step: int) -> None:
        """Drop the answers of later steps."""
        self._lines.keep_until(step)

    def finish(self) -> None:
        """Close the file."""
        self._lines.close()


class TrackerSet:
    """All trackers of a run."""

    def __init__(self, trackers: Sequence[Tracker], warn: Callable[[str], None]) -> None:
        self._trackers = list(trackers)
        self._warn = warn

    def log(self, step: int, numbers: Numbers) -> None:
        """Give the numbers to every tracker that still works."""
        self._each(lambda tracker: tracker.log(step, numbers))

    def resume(self, step: int) -> None:
        """The run goes on after ``step``."""
        self._each(lambda tracker: tracker.resume(step))

    def finish(self) -> None:
        """Close all trackers."""
        self._each(lambda tracker: tracker.finish())

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                act(tracker)
            except Exception as error:
                self._trackers.remove(tracker)
                self._warn(f"{type(tracker).__name__} failed and is left out from here: {type(error).__name__}: {error}")
