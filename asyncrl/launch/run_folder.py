"""The run folder: everything that a run leaves behind."""

import contextlib
import itertools
import json
import logging
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from asyncrl.config.schema import Config
from asyncrl.errors import ConfigError
from asyncrl.launch.environment import Place
from asyncrl.launch.resume import CONFIG_FILE, check_resume, lock, remember, remembered


@dataclass(frozen=True, slots=True)
class RunFolder:
    """``metrics.jsonl``, ``config.yaml``, ``logs/``, curves, and the first cause of a failure."""

    path: Path
    lock: int = -1
    """Descriptor of the lock; rank 0 holds it as long as it lives."""
    node: int | None = None
    """The node of this process where there are several: each has a terminal of its own, on which the cause must be said."""

    @property
    def logs(self) -> Path:
        """One log per process."""
        return self.path / "logs"

    @property
    def first_cause(self) -> Path:
        """Why the attempt ended, when it failed."""
        return self.path / "first_cause.json"

    @classmethod
    def open(cls, config: Config, place: Place, now: float) -> "RunFolder":
        """Make the folder of a new run, or take the one to go on in; lock it.

        Raises ConfigError when it cannot be made, holds another run, or belongs to a job that runs.
        """
        given = config.trainer.default_local_dir
        if given:
            check_usable(config, given)
        experiment = Path("runs").absolute() / config.trainer.experiment_name
        stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
        found = Path(given) if given else remembered(experiment, place.run_id, place.attempt)
        path = (found or _unused(experiment / f"{stamp}-s{config.trainer.seed}")).absolute()
        try:
            (path / "logs").mkdir(parents=True, exist_ok=True)
            if not given:
                remember(experiment, place.run_id, path)
            folder = cls(path, lock(path, place.attempt, now), place.node if place.several_nodes else None)
            # Of an attempt that failed: the next failure must find the place free.
            for old in path.glob("first_cause*.json"):
                old.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError("trainer.default_local_dir", str(path), f"it cannot be made: {error}") from error
        return folder

    @classmethod
    def join(cls, path: str, place: Place) -> "RunFolder":
        """The folder that rank 0 has made; where another node has another disk, one of the same name.

        Raises OSError when it cannot be made.
        """
        folder = cls(Path(path), node=place.node if place.several_nodes else None)
        folder.logs.mkdir(parents=True, exist_ok=True)
        return folder

    def claim_cause(self, cause: str) -> bool:
        """Write the first cause of the run and of this node; False when another process of this node was first.

        A disk that takes no file must not hide the cause: True.
        """
        draft = self.path / f".first_cause.{os.getpid()}"
        try:
            draft.write_text(json.dumps({"cause": cause, "pid": os.getpid()}), encoding="utf-8")
            if self.node is not None:
                with contextlib.suppress(FileExistsError):
                    os.link(draft, self.first_cause)
            os.link(draft, self.first_cause if self.node is None else self.path / f"first_cause.node{self.node}.json")
        except FileExistsError:
            return False
        except OSError:
            return True
        finally:
            with contextlib.suppress(OSError):
                draft.unlink()
        return True


def check_usable(config: Config, given: str) -> None:
    """Raise ConfigError for a configured folder that holds another run, or in which no file can be written."""
    path = Path(given)
    if (path / CONFIG_FILE).exists():
        check_resume(config, path)
    nearest = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError("trainer.default_local_dir", given, f"allowed: a folder that can be written; {nearest} cannot")


def _unused(path: Path) -> Path:
    """``path``, or the first of path-2, path-3, ... when another run began in the same second."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], numbered) if not each.exists())


def log_to(folder: RunFolder, name: str) -> logging.Logger:
    """The log of this process, in a file of its own; nothing a library does to the root logger reaches it."""
    logger = logging.getLogger("asyncrl")
    handler = logging.FileHandler(folder.logs / f"{name}.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return logger
