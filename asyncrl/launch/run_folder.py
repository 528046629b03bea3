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


@dataclass(frozen=True, slots=True)
class RunFolder:
    """``metrics.jsonl``, ``config.yaml``, ``logs/``, curves, and the first cause of a failure."""

    path: Path

    @property
    def logs(self) -> Path:
        """One log per process."""
        return self.path / "logs"

    @property
    def first_cause(self) -> Path:
        """Why the attempt ended, when it failed."""
        return self.path / "first_cause.json"

    @classmethod
    def create(cls, config: Config, now: float) -> "RunFolder":
        """Make the folder of a new run. Raises ConfigError when the configured folder holds a run already, or cannot be made."""
        given = config.trainer.default_local_dir
        if given:
            check_unused(given)
        stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
        path = Path(given) if given else _unused(Path("runs") / config.trainer.experiment_name / f"{stamp}-s{config.trainer.seed}")
        folder = cls(path.absolute())
        try:
            folder.logs.mkdir(parents=True, exist_ok=True)
            # Of a start that failed: the next failure must find the place free.
            folder.first_cause.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError("trainer.default_local_dir", str(path), f"it cannot be made: {error}") from error
        return folder

    def claim_cause(self, cause: str) -> bool:
        """Write the first cause; False when another process was first. A disk that takes no file must not hide the cause: True."""
        draft = self.path / f".first_cause.{os.getpid()}"
        try:
            draft.write_text(json.dumps({"cause": cause, "pid": os.getpid()}), encoding="utf-8")
            os.link(draft, self.first_cause)
        except FileExistsError:
            return False
        except OSError:
            return True
        finally:
            with contextlib.suppress(OSError):
                draft.unlink()
        return True


def check_unused(given: str) -> None:
    """Raise ConfigError for a configured folder that holds a run already, or in which no file can be written."""
    path = Path(given)
    if (path / "config.yaml").exists():
        raise ConfigError("trainer.default_local_dir", given, "allowed: a folder that holds no run yet, or null for a new one")
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
