"""Going on in a used run folder: only with the same configuration, and only one job at a time."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from asyncrl.config.schema import Config
from asyncrl.errors import ConfigError

CONFIG_FILE = "config.yaml"
LOCK_FILE = "run.lock"

FREE_KEYS = (
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.actor.use_dynamic_bsz",
    "actor_rollout_ref.model.enable_gradient_checkpointing",
    "actor_rollout_ref.model.use_remove_padding",
    "actor_rollout_ref.ref.log_prob_",
    "actor_rollout_ref.rollout.agent.num_workers",
    "actor_rollout_ref.rollout.checkpoint_engine.",
    "actor_rollout_ref.rollout.log_prob_",
    "actor_rollout_ref.rollout.max_num_",
    "actor_rollout_ref.rollout.n_gpus_per_node",
    "actor_rollout_ref.rollout.nnodes",
    "actor_rollout_ref.rollout.val_kwargs.",
    "critic.forward_",
    "critic.model.enable_gradient_checkpointing",
    "critic.model.use_remove_padding",
    "critic.ppo_max_token_len_per_gpu",
    "critic.ppo_micro_batch_size_per_gpu",
    "critic.use_dynamic_bsz",
    "data.val_",
    "debug",
    "reward.num_workers",
    "reward.timeout",
    "runtime.",
    "trainer.default_local_dir",
    "trainer.logger",
    "trainer.max_actor_ckpt_to_keep",
    "trainer.max_critic_ckpt_to_keep",
    "trainer.n_gpus_per_node",
    "trainer.nnodes",
    "trainer.resume_mode",
    "trainer.resume_newer",
    "trainer.save_freq",
    "trainer.save_on_exit",
    "trainer.test_freq",
    "trainer.total_epochs",
    "trainer.total_training_steps",
    "trainer.val_",
    "transfer_queue.",
)
"""Options, or beginnings of options, that may change when a run goes on: they do not change what is trained, or only for how long."""


def check_resume(config: Config, folder: Path) -> None:
    """Raise ConfigError unless ``config`` may go on in ``folder``, which holds a run."""
    if config.trainer.resume_mode == "disable":
        raise ConfigError("trainer.resume_mode", "disable", f"{folder} holds a run already; allowed: auto, or a folder that holds none")
    stored = msgspec.yaml.decode((folder / CONFIG_FILE).read_bytes(), type=dict[str, Any])
    before, now = dict(_leaves(stored)), dict(_leaves(msgspec.to_builtins(config)))
    changed = [key for key in dict.fromkeys([*before, *now]) if before.get(key) != now.get(key) and not key.startswith(FREE_KEYS)]
    if changed:
        key = changed[0]
        error = ConfigError(key, now.get(key), f"the run in {folder} has {before.get(key)!r}; go on with that, or take another run folder")
        for other in changed[1:]:
            error.add_note(f"also {other}: got {now.get(other)!r}, the run has {before.get(other)!r}")
        raise error


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", list(value) if isinstance(value, tuple) else value


def lock(folder: Path, attempt: int, now: float) -> int:
    """Take the run folder for this process; the kernel gives it back when the process ends. Returns the descriptor to keep.

    Raises ConfigError that names the holder when another job has it.
    """
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 4096).decode(errors="replace")
        os.close(descriptor)
        raise ConfigError(
            "trainer.default_local_dir", str(folder), f"the folder of no other running job; this one has it: {holder}"
        ) from None
    record = {"attempt": attempt, "host": socket.gethostname(), "pid": os.getpid(), "start": now}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(record).encode(), 0)
    return descriptor


def remembered(experiment: Path, run_id: str, attempt: int) -> Path | None:
    """The folder that the first attempt of this torchrun job made, for a later attempt."""
    pointer = _pointer(experiment, run_id)
    return Path(pointer.read_text()) if attempt and pointer.exists() else None


def remember(experiment: Path, run_id: str, folder: Path) -> None:
    """Let later attempts of this torchrun job find the folder."""
    _pointer(experiment, run_id).write_text(str(folder))


def _pointer(experiment: Path, run_id: str) -> Path:
    """The id is the user's and may hold any letters."""
    return experiment / f".{quote(run_id, safe='')}"
