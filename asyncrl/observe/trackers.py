"""Trackers: each takes the numbers of a step; one that fails is left out with one warning and never stops the run."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

Numbers = Mapping[str, float | int | str | list[float]]


class Tracker(Protocol):
    """One place where numbers go."""

    def log(self, step: int, numbers: Numbers) -> None: ...

    def finish(self) -> None: ...


class FileTracker:
    """``metrics.jsonl``: one JSON object a step, flushed at once. NaN becomes null."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "metrics.jsonl").open("ab")

    def log(self, step: int, numbers: Numbers) -> None:
        self._file.write(msgspec.json.encode({"step": step, **numbers}) + b"\n")
        self._file.flush()

    def finish(self) -> None:
        self._file.close()


class TensorBoardTracker:
    """Event files under ``tensorboard/``; lists and texts are left to ``metrics.jsonl``."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # torch is there only on ranks

        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, step: int, numbers: Numbers) -> None:
        for name, value in numbers.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        self._writer.close()


class Generations:
    """``generations.jsonl``: a few sampled answers of each step with their rewards."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "generations.jsonl").open("ab")

    def log(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Append one object per sample."""
        for sample in samples:
            self._file.write(msgspec.json.encode({"step": step, **sample}) + b"\n")
        self._file.flush()

    def finish(self) -> None:
        self._file.close()


class TrackerSet:
    """All trackers of a run."""

    def __init__(self, trackers: Sequence[Tracker], warn: Callable[[str], None]) -> None:
        self._trackers = list(trackers)
        self._warn = warn

    def log(self, step: int, numbers: Numbers) -> None:
        """Give the numbers to every tracker that still works."""
        self._each(lambda tracker: tracker.log(step, numbers))

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
