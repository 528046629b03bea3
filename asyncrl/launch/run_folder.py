"""The run folder: everything that a run leaves behind."""

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
        """Make the folder of a new run. Raises ConfigError when the configured folder holds a run already."""
        given = config.trainer.default_local_dir
        stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
        path = Path(given) if given else Path("runs") / config.trainer.experiment_name / f"{stamp}-s{config.trainer.seed}"
        if (path / "config.yaml").exists():
            raise ConfigError("trainer.default_local_dir", str(path), "a folder that holds no run yet, or null for a new one")
        folder = cls(path.absolute())
        folder.logs.mkdir(parents=True, exist_ok=True)
        return folder

    def claim_cause(self, cause: str) -> bool:
        """Write the first cause; False when another process was first."""
        try:
            descriptor = os.open(self.first_cause, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "w") as file:
            json.dump({"cause": cause, "pid": os.getpid()}, file)
        return True


def log_to(folder: RunFolder, name: str) -> logging.Logger:
    """The log of this process, in a file of its own; nothing a library does to the root logger reaches it."""
    logger = logging.getLogger("asyncrl")
    handler = logging.FileHandler(folder.logs / f"{name}.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return logger
