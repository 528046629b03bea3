"""A job that is killed whole and started again by hand in the same run folder, and what both attempts left behind."""

import itertools
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file
from torch import Tensor

from asyncrl.observe.events import read_run
from asyncrl.runtime.files import DiskFolder
from asyncrl.runtime.records import Noted
from asyncrl.trainer.checkpoint import TrainerState
from asyncrl.training.checkpoint import CheckpointFolder
from asyncrl.trajectory import Status
from asyncrl.transfer_queue.journal import Journal
from asyncrl.transfer_queue.storage import ShardStorage
from asyncrl.transfer_queue.table import ShardTable
from tests.processes.launching import ROOT, environment, torchrun
from tests.processes.mortal import LEARNED, SAVING
from tests.processes.saved_tensors import saved_tensors
from tests.processes.warm_ranks import warm_ranks

STEPS, PROMPTS, SESSIONS, KILLED_AT = 5, 4, 4, 3
OPTIONS = (
    "config=quickstart",
    f"trainer.total_training_steps={STEPS}",
    *SAVING,
    "trainer.logger=[console]",
    f"data.train_batch_size={PROMPTS}",
    f"actor_rollout_ref.rollout.n={SESSIONS}",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=2",
)
MODES = {
    "sync": (2, ("actor_rollout_ref.rollout.full_determinism=true",)),
    "separate_async": (
        2,
        (
            "trainer.v1.trainer_mode=separate_async",
            "trainer.v1.separate_async.parameter_sync_step=1",
            "trainer.n_gpus_per_node=1",
            "actor_rollout_ref.rollout.nnodes=1",
            "actor_rollout_ref.rollout.n_gpus_per_node=1",
        ),
    ),
    "colocate_async": (1, ("trainer.v1.trainer_mode=colocate_async",)),
}
"""Ranks, and what makes the mode: in ``separate_async`` one rank trains and one lends its device to an engine."""


def options_of(folder: Path, mode: str) -> list[str]:
    """The words of the command line of a run."""
    ranks, options = MODES[mode]
    given = options if mode == "separate_async" else (*options, f"trainer.n_gpus_per_node={ranks}")
    return [*OPTIONS, f"trainer.default_local_dir={folder}", *given]


def launch(folder: Path, mode: str, point: str, *more: str) -> "subprocess.CompletedProcess[str]":
    """Run one attempt to its end, whatever that is."""
    command = torchrun(MODES[mode][0], "tests.processes.mortal", point, str(KILLED_AT), *options_of(folder, mode), *more)
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=150)


def run_whole(folder: Path, mode: str, *more: str) -> str:
    """Run an attempt that nobody kills; return what it printed."""
    return warm_ranks(MODES[mode][0]).run([*options_of(folder, mode), *more], recorded=True)


@dataclass(frozen=True, slots=True)
class Attempts:
    """What the two attempts did."""

    resumed_after: int
    learned_again: list[int]
    """Steps that both attempts learned."""
    finished: dict[str, None]
    """Prompts whose groups were finished at the kill, and not trained by the checkpoint that the second attempt began with."""
    again: list[str]
    """Those among them that the second attempt gave to an agent worker."""
    reissued: int
    """Prompts that the second attempt issued again, because they were not finished."""


def kill_and_go_on(folder: Path, mode: str, point: str) -> Attempts:
    """Kill the whole job at ``point``, start it again, and let it come to its end."""
    killed = launch(folder, mode, f"job/{point}")
    assert killed.returncode == -signal.SIGKILL, (killed.returncode, killed.stdout[-3000:], killed.stderr[-3000:])
    return go_on(folder, mode)


def go_on(folder: Path, mode: str, *more: str) -> Attempts:
    """Start a job that has ended again, and let it come to its end."""
    found = CheckpointFolder(str(folder), None).newest(print)
    assert found is not None
    state = msgspec.json.decode(found.state, type=TrainerState)
    over = state.ledger.trained.keys() | state.ledger.dropped.keys()
    finished = dict.fromkeys(uid for uid in settled_in_journal(folder, found.step) if uid not in over)
    first = learned(folder)
    shutil.move(folder / "events", folder / "events_of_first")
    (folder / LEARNED).unlink()
    assert f"resumed after step {found.step} from" in run_whole(folder, mode, *more)
    given = given_to_agents(folder)
    return Attempts(
        found.step,
        [step for step in learned(folder) if step in first],
        finished,
        [uid for uid in given if uid in finished],
        sum(uid in state.ledger.in_flight for uid in given),
    )


def learned(folder: Path) -> list[int]:
    """The steps that were learned since the file was removed, in order, all of them with all rows."""
    lines = [line.split() for line in (folder / LEARNED).read_text().splitlines()]
    assert all(rows == str(PROMPTS * SESSIONS) for _, rows in lines)
    return [int(step) for step, _ in lines]


def settled_in_journal(folder: Path, step: int) -> Iterator[str]:
    """The finished groups that the journals hold for a run that goes on from ``step``; read from a copy."""
    for shard in sorted((folder / "queue").glob("of*/shard-*")):
        copy = folder / "journal_copy" / shard.name
        shutil.copytree(shard, copy)
        storage = ShardStorage(ShardTable(0, "reader"), Journal(DiskFolder(str(copy))))
        assert storage.replay(step) == []
        rows = storage.table.list_rows("train", {"is_prompt": True})
        yield from (uid for uid, tag in rows.items() if Status(tag["status"]).settled)


def given_to_agents(folder: Path) -> list[str]:
    """The prompts whose groups an agent worker began in the last attempt, from the event files of the shards."""
    given: dict[str, None] = {}
    for event in read_run(folder / "events"):
        record = event.record
        if isinstance(record, Noted) and record.name.startswith("queue.") and '"running"' in str(record.attributes.get("tag", "")):
            given.update(dict.fromkeys(record.subjects))
    return list(given)


def check_accounts(folder: Path) -> None:
    """Every step was trained with all its prompts, and every prompt that was issued is trained once, or still in flight."""
    found = CheckpointFolder(str(folder), None).newest(print)
    assert found is not None
    ledger = msgspec.json.decode(found.state, type=TrainerState).ledger
    assert Counter(ledger.trained.values()) == dict.fromkeys(range(1, STEPS + 1), PROMPTS)
    assert list(ledger.dropped.values()) == []
    ends = list(itertools.chain(ledger.trained, ledger.in_flight))
    assert sorted(ends) == sorted(ledger.order)


def final_state(folder: Path) -> dict[str, Any]:
    """Weights, optimizer and random states of the last step, and the controller's own state."""
    last = folder / f"global_step_{STEPS}"
    tensors = saved_tensors(last / "actor")
    assert any(name.startswith("model.") for name in tensors)
    assert any(name.startswith("optimizer.state.") for name in tensors)
    random = {file.name: load_file(file)["cpu"] for file in sorted(last.glob("rng_*.safetensors"))}
    assert len(random) == 2
    return {**tensors, **random, "trainer.json": (last / "trainer.json").read_bytes()}


def same_bits(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether every tensor and every state is the same, bit by bit."""
    return one.keys() == other.keys() and all(
        value.dtype == other[name].dtype and torch.equal(value.view(torch.uint8), other[name].view(torch.uint8))
        if isinstance(value, Tensor) and value.dim()
        else bool(value == other[name])
        for name, value in one.items()
    )
