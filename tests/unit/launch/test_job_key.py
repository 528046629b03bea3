"""The key file of a job on several nodes: what is accepted, and what each refusal says."""

import os
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.launch.job_key import CALLERS, job_keys, read_job_key
from asyncrl.transfer_queue.shard import QueueShard
from asyncrl.workers.agent import AgentWorker
from asyncrl.workers.reward import RewardWorker


def key_file(folder: Path, size: int = 32, mode: int = 0o600) -> str:
    path = folder / "key"
    path.write_bytes(os.urandom(size))
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_that_only_its_user_can_read_is_the_key(mode: int, tmp_path: Path) -> None:
    path = key_file(tmp_path, mode=mode)
    assert read_job_key({"ASYNCRL_KEY_FILE": path}) == Path(path).read_bytes()


@pytest.mark.parametrize("environment", [{}, {"ASYNCRL_KEY_FILE": ""}, {"ASYNCRL_KEY_FILE": "/nowhere/key"}])
def test_a_missing_file_is_refused_with_the_command_that_makes_one(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"ASYNCRL_KEY_FILE: .*head -c 32 /dev/urandom > key"):
        read_job_key(environment)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o602])
def test_a_file_that_others_can_reach_is_refused_with_its_mode(mode: int, tmp_path: Path) -> None:
    path = key_file(tmp_path, mode=mode)
    with pytest.raises(ConfigError, match=rf"its mode is {mode:04o}.*chmod 600"):
        read_job_key({"ASYNCRL_KEY_FILE": path})


@pytest.mark.parametrize(("size", "said"), [(0, "0 bytes"), (31, "31 bytes"), (33, "more than 32 bytes")])
def test_another_size_is_refused_and_the_bytes_are_not_shown(size: int, said: str, tmp_path: Path) -> None:
    path = key_file(tmp_path, size)
    with pytest.raises(ConfigError, match=said) as caught:
        read_job_key({"ASYNCRL_KEY_FILE": path})
    assert not size or Path(path).read_bytes().hex() not in str(caught.value)


def test_a_folder_or_a_pipe_is_no_key(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ConfigError, match="allowed: a file"):
            read_job_key({"ASYNCRL_KEY_FILE": str(path)})


def test_rank_0_is_the_controller_and_each_rank_makes_the_keys_of_its_children() -> None:
    key = bytes(range(32))
    first, second = job_keys(key, 0), job_keys(key, 1)
    assert (first.role, second.role) == ("controller", "rank")
    for kind in (QueueShard, AgentWorker, RewardWorker):
        assert kind.process_role in CALLERS
        assert first.for_role(kind.process_role) == second.for_role(kind.process_role)


@pytest.mark.parametrize(
    ("role", "servers", "callers"),
    [
        ("reward", ["controller", "rank"], ["controller", "rank", "agent"]),
        ("agent", ["controller", "rank", "reward", "shard", "engine"], ["controller", "rank"]),
        ("shard", ["controller", "rank"], ["controller", "rank", "agent"]),
    ],
)
def test_a_child_knows_whom_it_may_call_and_who_may_call_it(role: str, servers: list[str], callers: list[str]) -> None:
    keys = job_keys(bytes(32), 0).for_role(role)
    assert (list(keys.servers), list(keys.callers)) == (servers, callers)
