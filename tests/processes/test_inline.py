"""``debug=inline``: everything in one process and one thread, with the numbers of a run of many."""

import contextlib
import functools
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from asyncrl import cli
from asyncrl.config.load import load_config
from asyncrl.errors import CallFailed, ConfigError, RunFailed
from asyncrl.launch.inline import open_session, open_trainer
from asyncrl.observe.curve import read_metrics
from asyncrl.rollout.embedded import EmbeddedEngine
from asyncrl.trainer.trainer import Trainer
from asyncrl.transfer_queue.shard import QueueShard
from asyncrl.weight_sync.in_place import InPlaceSync
from asyncrl.workers import agent, policy
from asyncrl.workers.policy import PolicyWorker
from asyncrl.workers.reference import ReferenceWorker
from tests.processes.invariants import accuracies, training_steps
from tests.processes.launching import ROOT, environment, run_quickstart
from tests.processes.scenario import run_scenario
from tests.processes.test_worked_example import SMALL, TWO_OUTPUTS, WORKED, check_step, model

TINY = (
    "config=quickstart",
    "data.train_batch_size=2",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "trainer.total_training_steps=2",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
)

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    seen = solution_str
    breakpoint()
    return float(seen == ground_truth)

def wrong(data_source, solution_str, ground_truth, extra_info):
    raise KeyError("boo")
"""

HOOK = """
import json, sys, threading, traceback

def note():
    frame = sys._getframe(1)
    record = {
        "stack": [each.name for each in traceback.extract_stack(frame)],
        "locals": sorted(frame.f_locals),
        "main": threading.current_thread() is threading.main_thread(),
    }
    with open("breakpoints.jsonl", "a") as file:
        print(json.dumps(record), file=file)
"""


Run = tuple[Path, "subprocess.Popen[str]"]

BREAKPOINTS = {"noted": "hook.note", "debugged": "", "endless": "0"}
"""What ``breakpoint()`` is in each of the runs that are started; "" is pdb."""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """The tiny run three times, begun together, each in a folder of its own, with the terminal's place taken by pipes."""
    runs: dict[str, Run] = {}
    with contextlib.ExitStack() as ends:
        # A test run in the background of a shell hands an ignored SIGINT down; a user's terminal does not.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            for name, hook in BREAKPOINTS.items():
                folder = tmp_path_factory.mktemp(name)
                (folder / "reward.py").write_text(REWARD)
                (folder / "hook.py").write_text(HOOK)
                command = [sys.executable, "-m", "asyncrl.cli", "train", *TINY, "debug=inline", "trainer.default_local_dir=run"]
                command += ["reward.custom_reward_function.path=reward.py"]
                command += ["trainer.total_training_steps=1000000"] if name == "endless" else []
                variables = {**environment(), "PYTHONPATH": f"{folder}:{ROOT}", "PYTHONBREAKPOINT": hook}
                pipe = subprocess.PIPE
                run = subprocess.Popen(command, cwd=folder, env=variables, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
                ends.enter_context(run)
                ends.callback(run.kill)
                runs[name] = folder, run
        finally:
            signal.signal(signal.SIGINT, before)
        yield runs


@pytest.mark.timeout(150)
def test_ctrl_c_ends_the_run(started: dict[str, Run]) -> None:
    _, run = started["endless"]
    assert run.stdout is not None
    assert run.stderr is not None
    while " 2/1000000 " not in run.stdout.readline():
        assert run.poll() is None, run.stderr.read()
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=50)
    assert run.returncode == 130, errors
    assert "Traceback" not in errors


def test_a_breakpoint_in_the_reward_stops_the_main_thread_of_the_command(started: dict[str, Run]) -> None:
    folder, run = started["noted"]
    said, errors = run.communicate(timeout=50)
    assert run.returncode == 0, errors
    assert "debug=inline runs one rank: trainer.n_gpus_per_node=2 is taken as 1" in said
    found = [json.loads(line) for line in (folder / "breakpoints.jsonl").read_text().splitlines()]
    assert len(found) == 8  # two steps of two prompts with two sessions
    for record in found:
        assert record["main"]
        assert {"train_inline", "score", "compute_score"} <= set(record["stack"])
        assert record["locals"] == ["data_source", "extra_info", "ground_truth", "seen", "solution_str"]


def test_pdb_reads_the_terminal_goes_on_and_leaving_it_ends_the_run_as_ctrl_c_does(started: dict[str, Run]) -> None:
    _, run = started["debugged"]
    said, errors = run.communicate("print('here', type(seen))\nc\n" + "c\n" * 3 + "q\n", timeout=50)
    assert run.returncode == 130, errors
    assert "(Pdb) here <class 'str'>" in said
    assert "step 1/2" in said
    assert said.count("-> return float(seen == ground_truth)") == 5
    assert "Traceback" not in errors


def test_an_error_reaches_the_user_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "reward.py").write_text(REWARD)
    reward = (f"reward.custom_reward_function.path={tmp_path / 'reward.py'}", "reward.custom_reward_function.name=wrong")
    with pytest.raises(RunFailed, match=r"step 1 has no row to train: .*KeyError: 'boo'"):
        cli.main(["train", *TINY, "debug=inline", f"trainer.default_local_dir={tmp_path / 'run'}", *reward])
    assert "4 failed sessions" in capsys.readouterr().out


STAGES: dict[str, tuple[Any, str]] = {
    "sample": (Trainer, "_sample"),
    "agent": (agent, "run_group"),
    "generate": (EmbeddedEngine, "step"),
    "queue": (QueueShard, "_wake"),
    "old_log_prob": (PolicyWorker, "_old_log_prob"),
    "reference": (ReferenceWorker, "_evaluate"),
    "advantages": (policy, "spread"),
    "objective": (policy, "policy_objective"),
    "sync": (InPlaceSync, "publish"),
}
"""A function of each stage. Those of policy, reference and engine run on the device thread when there is one."""


async def test_a_breakpoint_works_in_every_stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stopped: dict[str, list[str]] = {}

    def note() -> None:
        assert threading.current_thread() is threading.main_thread()
        stack = traceback.extract_stack()
        stopped[next(each.name for each in reversed(stack) if each.name in STAGES)] = [each.name for each in stack]

    for name, (holder, attribute) in STAGES.items():
        monkeypatch.setattr(holder, attribute, stopping(name, getattr(holder, attribute)))
    monkeypatch.setattr(sys, "breakpointhook", note)
    async with open_trainer([*TINY, f"trainer.default_local_dir={tmp_path}"]) as trainer:
        await trainer.train_step()
    assert sorted(stopped) == sorted(STAGES)
    assert {"update", "_update", "_objective"} <= set(stopped["objective"]), stopped["objective"]
    assert {"_pump", "generate"} <= set(stopped["generate"])


def stopping(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` under another name, with a breakpoint before it."""

    def stage(*args: Any, **kwargs: Any) -> Any:
        breakpoint()
        return function(*args, **kwargs)

    stage.__code__ = stage.__code__.replace(co_name=name)
    return functools.wraps(function)(stage)


async def test_inline_equals_the_dense_reference(tmp_path: Path) -> None:
    options = ["config=quickstart", "debug=inline", f"trainer.default_local_dir={tmp_path / 'run'}", *SMALL]
    async with open_session(load_config(options)) as session:
        await run_scenario({"out": str(tmp_path), "steps": [WORKED, TWO_OUTPUTS]}, session)
    trained, reference = model(), model()
    for step in (1, 2):
        check_step(json.loads((tmp_path / f"step_{step}.json").read_text()), tmp_path / f"weights_{step}.safetensors", trained, reference)


@pytest.mark.timeout(180)
def test_inline_equals_the_run_of_one_rank_bit_by_bit(tmp_path: Path) -> None:
    options = (
        "trainer.total_training_steps=2",
        "trainer.val_before_train=false",
        "trainer.test_freq=2",
        "actor_rollout_ref.rollout.full_determinism=true",
    )
    with ThreadPoolExecutor(1) as beside:
        launched = beside.submit(run_quickstart, tmp_path / "rank", *options, "trainer.n_gpus_per_node=1")
        assert cli.main(["train", "config=quickstart", "debug=inline", f"trainer.default_local_dir={tmp_path / 'inline'}", *options]) == 0
        launched.result()
    inline, rank = read_metrics(tmp_path / "inline"), read_metrics(tmp_path / "rank")
    assert len(training_steps(inline)) == 2
    for name in ("training/weight_digest", "actor/by_update/loss", "actor/by_update/grad_norm", "critic/score/mean"):
        assert [step[name] for step in training_steps(inline)] == [step[name] for step in training_steps(rank)], name
    assert len(accuracies(inline)) == 1
    assert accuracies(inline) == accuracies(rank)


async def test_trainers_follow_each_other_in_one_process_and_leave_nothing(tmp_path: Path) -> None:
    options = [*TINY, f"trainer.default_local_dir={tmp_path / 'run'}"]
    digests: list[object] = []
    await one_trainer(digests, options, 1)
    assert logging.getLogger("asyncrl").propagate
    before = held()
    for number in (2, 3):
        await one_trainer(digests, [*options[:-1], f"trainer.default_local_dir={tmp_path / str(number)}"], 2)
    assert held() == before
    assert not dist.is_initialized()
    assert digests[0] == digests[1] == digests[3]
    assert digests[2] == digests[4] != digests[0]


def held() -> tuple[object, ...]:
    """Threads, open files, and what torch and logging change for the whole process."""
    gc.collect()
    logger = logging.getLogger("asyncrl")
    log = logger.handlers[:], logger.level, logger.propagate
    return threading.active_count(), len(os.listdir("/proc/self/fd")), sys.excepthook, log


async def one_trainer(digests: list[object], options: list[str], steps: int) -> None:
    """As a notebook does it."""
    async with open_trainer(options) as trainer:
        assert (trainer.step, trainer.ranks) == (0, 1)
        for number in range(steps):
            report = await trainer.train_step()
            assert trainer.step == report.step == number + 1
            digests.append(report.numbers["training/weight_digest"])


async def test_a_step_after_the_last_is_refused(tmp_path: Path) -> None:
    async with open_trainer([*TINY, "trainer.total_training_steps=1", f"trainer.default_local_dir={tmp_path}"]) as trainer:
        await trainer.train_step()
        with pytest.raises(RunFailed, match=r"there is no step 2: the run has 1"):
            await trainer.train_step()


async def test_an_error_of_a_role_ends_the_block_and_says_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("in the objective")

    monkeypatch.setattr(policy, "policy_objective", broken)
    with pytest.raises(CallFailed, match="ZeroDivisionError: in the objective") as caught:
        async with open_trainer([*TINY, f"trainer.default_local_dir={tmp_path}"]) as trainer:
            await trainer.train_step()
    assert "in broken\n" in caught.value.__notes__[0]
    assert not dist.is_initialized()


async def test_an_error_in_the_background_of_a_role_ends_the_block_as_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(engine: EmbeddedEngine) -> None:
        raise ZeroDivisionError("in the engine")

    monkeypatch.setattr(EmbeddedEngine, "step", broken)
    with pytest.raises(ZeroDivisionError, match="in the engine"):
        async with open_trainer([*TINY, f"trainer.default_local_dir={tmp_path}"]) as trainer:
            await trainer.train_step()
    assert not dist.is_initialized()


async def test_a_wrong_configuration_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.seed"):
        async with open_trainer([*TINY, f"trainer.default_local_dir={tmp_path / 'run'}", "trainer.seed=x"]):
            raise AssertionError("opened")
    assert not (tmp_path / "run").exists()


def test_torchrun_refuses_it(tmp_path: Path) -> None:
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    command = [sys.executable, "-m", "asyncrl.launch", *TINY, "debug=inline", f"trainer.default_local_dir={tmp_path / 'run'}"]
    found = subprocess.run(command, cwd=ROOT, env={**environment(), **place}, capture_output=True, text=True, timeout=50)
    assert found.returncode == 2
    assert found.stderr.startswith("asyncrl: debug: got 'inline'; torchrun starts processes of its own")
