"""Two nodes on loopback: the quickstart learns as on one, nothing listens elsewhere, and no end of a part leaves the other waiting."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from asyncrl import cli
from asyncrl.launch.inline import open_trainer
from asyncrl.observe.curve import read_metrics
from tests.processes.invariants import check_invariants, training_steps
from tests.processes.launching import ROOT, environment
from tests.processes.live_run import TINY
from tests.processes.two_nodes import free_port, make_key, two_nodes

LIMIT = 30.0
"""Three times the promise."""

THREE = ("trainer.total_training_steps=3", "trainer.test_freq=-1", "actor_rollout_ref.rollout.full_determinism=true")


TWO = ("config=quickstart", "trainer.nnodes=2", "trainer.n_gpus_per_node=1")


def test_plan_places_the_processes_and_train_says_what_to_start_on_each_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--json", *TWO]) == 0
    planned = json.loads(capsys.readouterr().out)["processes"]
    assert {process["name"] for process in planned if process["node"] == 1} == {"rank-1", "supervisor-1", "shard-1"}
    assert cli.main(["train", *TWO]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "trainer.nnodes: got 2; start on each node: torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d" in line
    assert line.endswith(f"-m asyncrl.launch {' '.join(TWO)}")


@pytest.mark.timeout(300)
async def test_the_quickstart_trains_on_two_nodes_as_in_one_process_and_listens_on_the_loopback_alone(tmp_path: Path) -> None:
    key = make_key(tmp_path / "key")
    with two_nodes(tmp_path, [key, key], *THREE) as nodes:
        node_0, node_1 = nodes.leader()
        job = {process.pid for process in nodes.processes()}
        # torchrun's agents host the store; nothing of ours is in them.
        heard = [seen for seen in psutil.net_connections("tcp") if seen.pid in job and seen.status == psutil.CONN_LISTEN]
        on_node = {name: node for node in (node_0, node_1) for name in ("shard-0", "shard-1", "agent-0", "reward-0") if found(node, name)}
        shown = [f"{process.cmdline()} {process.environ()}" for process in nodes.processes() if "RANK" not in process.environ()]
        took = nodes.seconds_to_end(60.0)
        print(f"ended {took:.1f} s after the first step")
        assert [agent.process.returncode for agent in nodes.agents] == [0, 0], nodes.output()
        nodes.check_nothing_left()
    assert len(heard) >= 6
    assert {address.ip for address in (seen.laddr for seen in heard) if address} == {"127.0.0.1"}
    assert {name for name, node in on_node.items() if node is node_1} == {"shard-1"}
    assert len(on_node) == 4
    assert len(shown) == 6
    assert not any("ASYNCRL_KEY_FILE" in text or key.read_bytes().hex() in text or str(key) in text for text in shown)
    records = read_metrics(tmp_path / "run")
    assert [record["step"] for record in training_steps(records)] == [1, 2, 3]
    check_invariants(records)
    logs = {path.name for path in (tmp_path / "run" / "logs").iterdir()}
    assert {"rank0.log", "rank1.log", "supervisor-0.log", "supervisor-1.log", "shard-0.log", "shard-1.log", "agent-0.log"} <= logs
    name = "actor/by_update/loss"
    async with open_trainer(["config=quickstart", f"trainer.default_local_dir={tmp_path / 'alone'}", *THREE]) as trainer:
        alone = await trainer.train_step()
    assert training_steps(records)[0][name] == pytest.approx(alone.numbers[name], abs=1e-5)


def found(node: object, name: str) -> bool:
    """Whether a child of this name runs on a node."""
    try:
        return bool(node.pid_of(name))  # type: ignore[attr-defined]
    except LookupError:
        return False


VICTIMS = {
    "rank 1": (1, "rank 1 on node 1"),
    "the torchrun agent": (0, "the torchrun agent on node 0"),
    "shard-1": (1, "shard-1 on node 1"),
}


@pytest.mark.timeout(150)
@pytest.mark.parametrize("victim", ["rank 1", *(pytest.param(name, marks=pytest.mark.faults) for name in VICTIMS if name != "rank 1")])
def test_a_killed_process_ends_both_nodes_and_is_named_with_its_node(victim: str, tmp_path: Path) -> None:
    home, words = VICTIMS[victim]
    key = make_key(tmp_path / "key")
    with two_nodes(tmp_path, [key, key], *TINY, "trainer.total_training_steps=5000") as nodes:
        pair = nodes.leader()
        pid = pair[home].pid_of(victim)
        os.kill(pid, signal.SIGKILL)
        took = nodes.seconds_to_end(LIMIT)
        print(f"kill -9 of {words}: all gone on both nodes after {took:.2f} s")
        assert all(agent.process.returncode != 0 for agent in nodes.agents)
        cause = f"{words} (pid {pid}) died"
        # A node whose only rank was killed has nobody left to speak; the other one names it.
        speaking = pair[:1] if victim == "rank 1" else pair
        for node in speaking:
            assert node.own_lines[0].startswith(f"asyncrl: {cause}"), nodes.output()
        assert pair[0].first_cause.startswith(cause)
        nodes.check_nothing_left()


def says_it_is_started_again(name: str, line: str) -> bool:
    """Whether a line of node 1 says so of a child."""
    return line.startswith(f"{name} on node 1 (pid ") and line.endswith("it is started again")


@pytest.mark.timeout(240)
def test_children_of_the_other_node_are_started_again_there_and_the_run_goes_on(tmp_path: Path) -> None:
    key, steps = make_key(tmp_path / "key"), 15
    options = ("actor_rollout_ref.rollout.agent.num_workers=2", "reward.num_workers=2", "transfer_queue.journal=interval")
    with two_nodes(tmp_path, [key, key], *TINY, *options, f"trainer.total_training_steps={steps}") as nodes:
        node_0, node_1 = nodes.leader()
        for name in ("agent-1", "reward-1", "shard-1"):
            os.kill(node_1.pid_of(name), signal.SIGKILL)
            node_1.wait_for_line(functools.partial(says_it_is_started_again, name))
        node_0.wait_for_line(lambda line: line == "agent-1 serves again; what it held is issued again")
        nodes.seconds_to_end(150.0)
        assert [agent.process.returncode for agent in nodes.agents] == [0, 0], nodes.output()
        nodes.check_nothing_left()
    records = training_steps(read_metrics(tmp_path / "run"))
    assert [record["step"] for record in records] == list(range(1, steps + 1))
    assert {record["training/rows_trained"] for record in records} == {16}


@pytest.mark.faults
@pytest.mark.timeout(240)
def test_an_engine_on_the_other_node_is_started_again_there_and_given_its_weights(tmp_path: Path) -> None:
    key, steps, rollout = make_key(tmp_path / "key"), 30, "actor_rollout_ref.rollout"
    options = ("trainer.nnodes=1", f"{rollout}.nnodes=1", f"{rollout}.n_gpus_per_node=1", "trainer.v1.trainer_mode=separate_async")
    with two_nodes(tmp_path, [key, key], *TINY, *options, f"trainer.total_training_steps={steps}") as nodes:
        node_0, node_1 = nodes.leader()
        os.kill(node_1.pid_of("engine-0"), signal.SIGKILL)
        node_1.wait_for_line(functools.partial(says_it_is_started_again, "engine-0"))
        node_0.wait_for_line(lambda line: line.startswith("engine-0 serves again, with version "))
        nodes.seconds_to_end(150.0)
        assert [agent.process.returncode for agent in nodes.agents] == [0, 0], nodes.output()
        nodes.check_nothing_left()
    assert [record["step"] for record in training_steps(read_metrics(tmp_path / "run"))] == list(range(1, steps + 1))


@pytest.mark.faults
@pytest.mark.timeout(150)
def test_different_keys_are_named_on_both_nodes(tmp_path: Path) -> None:
    began = time.monotonic()
    with two_nodes(tmp_path, [make_key(tmp_path / "a"), make_key(tmp_path / "b")], *TINY) as nodes:
        nodes.seconds_to_end(90.0)
        print(f"refused after {time.monotonic() - began:.1f} s")
        assert all(agent.process.returncode != 0 for agent in nodes.agents)
        for agent in nodes.agents:
            assert agent.own_lines[0].startswith("asyncrl: ASYNCRL_KEY_FILE: got 'another key'; rank "), nodes.output()
        nodes.check_nothing_left()


@pytest.mark.parametrize("given", ["", "open", "short"])
def test_a_wrong_key_file_is_refused_before_torch_is_imported(given: str, tmp_path: Path) -> None:
    key = make_key(tmp_path / "open")
    key.chmod(0o644)
    make_key(tmp_path / "short").write_bytes(b"31 bytes are one too few for us")
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2"}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "ASYNCRL_KEY_FILE": str(tmp_path / given) if given else ""}
    command = [sys.executable, "-X", "importtime", "-m", "asyncrl.launch", "config=quickstart", "trainer.nnodes=2"]
    command += ["trainer.n_gpus_per_node=1", f"trainer.default_local_dir={tmp_path / 'run'}"]
    began = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, env=environment() | place, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        seen = []
        for line in process.stderr:
            seen.append(line)
            if line.startswith("asyncrl:"):
                break
        process.kill()
    print(f"refused after {time.monotonic() - began:.1f} s")
    assert seen[-1].startswith("asyncrl: ASYNCRL_KEY_FILE: got "), "".join(seen[-20:])
    assert "key" in seen[-1]
    imported = {line.rpartition("|")[2].strip() for line in seen if line.startswith("import time:")}
    assert "msgspec" in imported
    assert "torch" not in imported
    assert not (tmp_path / "run").exists()


@pytest.mark.faults
@pytest.mark.timeout(150)
def test_a_node_without_a_key_is_refused_and_the_other_one_says_so(tmp_path: Path) -> None:
    began = time.monotonic()
    with two_nodes(tmp_path, [make_key(tmp_path / "key"), None], *TINY) as nodes:
        nodes.seconds_to_end(90.0)
        print(f"refused after {time.monotonic() - began:.1f} s")
        with_key, without = nodes.agents
        assert len(without.own_lines) == 1, nodes.output()
        assert "ASYNCRL_KEY_FILE: got None; several nodes need a key file" in without.own_lines[0]
        assert "head -c 32 /dev/urandom" in without.own_lines[0]
        assert "refuses to start: ASYNCRL_KEY_FILE" in with_key.own_lines[0], nodes.output()
        nodes.check_nothing_left()
