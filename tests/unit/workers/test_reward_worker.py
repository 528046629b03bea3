"""Reward workers: what a busy one tells its callers, one that freezes its process, and one that dies under an answer."""

import asyncio
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from asyncrl.errors import ActorDied, CallTimedOut
from asyncrl.launch.cluster import RESTARTS, frozen_margin
from asyncrl.runtime import ActorSystem
from asyncrl.runtime.actor import endpoint
from asyncrl.runtime.restarts import Ending, RestartBudget
from asyncrl.runtime.supervisor_messages import ProcessSpec
from asyncrl.trajectory import GenerateRequest, RewardItem, RewardResult
from asyncrl.workers.reward import RewardWorker
from tests.unit.workers.agent_room import AgentRoom, agent_room, group
from tests.unit.workers.engine_room import SpyEngine

BLOCKING = """
import threading, time
def compute_score(solution_str, **given):
    if solution_str == "late":
        threading.Event().wait(20.0)
    time.sleep(float(solution_str))
    return 1.0
"""
HOLDING_THE_LOCK = """
import ctypes
def compute_score(solution_str, **given):
    ctypes.PyDLL(None).usleep(int(float(solution_str) * 1e6))
    return 1.0
"""
SECONDS, MARGIN = 0.4, 0.6
LETTER = 8


def item(text: str) -> RewardItem:
    return RewardItem(data_source="any", solution_str=text, ground_truth="", extra_info={})


def file_of(folder: Path, code: str) -> str:
    path = folder / "judge.py"
    path.write_text(code)
    return str(path)


async def test_a_call_that_queues_behind_slow_and_late_answers_of_others_is_not_silent(tmp_path: Path) -> None:
    async with ActorSystem.local() as system:
        spawned = await system.spawn(RewardWorker, file_of(tmp_path, BLOCKING), "compute_score", {}, 1, SECONDS, name="reward-0")
        worker = spawned.watched(0.8)
        first = asyncio.ensure_future(worker.call(RewardWorker.score, [item(text) for text in ("late", "0.2", "late", "0.2")]))
        second = asyncio.ensure_future(worker.call(RewardWorker.score, [item("0")]))
        assert [result.error for result in await first] == ["timeout after 0.4 s", "", "timeout after 0.4 s", ""]
        assert [result.score for result in await second] == [1.0]


async def test_a_call_is_silent_as_long_as_no_answer_at_all_is_done(tmp_path: Path) -> None:
    async with ActorSystem.local() as system:
        spawned = await system.spawn(RewardWorker, file_of(tmp_path, BLOCKING), "compute_score", {}, 1, 20.0, name="reward-0")
        with pytest.raises(CallTimedOut, match=r"RewardWorker\.score"):
            await spawned.watched(0.2).call(RewardWorker.score, [item("late")])


async def test_a_reward_that_holds_the_interpreter_lock_ends_its_worker_which_comes_back(tmp_path: Path) -> None:
    file = file_of(tmp_path, HOLDING_THE_LOCK)
    async with ActorSystem.start(log_folder=str(tmp_path)) as system:
        worker = await system.spawn(
            RewardWorker, file, "compute_score", {}, 2, SECONDS, margin=MARGIN, name="reward-0", process="reward-0", restarts=1
        )
        # One that holds it for less than its timeout ends nothing.
        assert [result.score for result in await worker.call(RewardWorker.score, [item("0.3"), item("0")])] == [1.0, 1.0]
        with pytest.raises(ActorDied, match="reward-0"):
            await worker.with_deadline(3 * (SECONDS + MARGIN)).call(RewardWorker.score, [item("60"), item("0")])
        assert [result.score for result in await worker.call(RewardWorker.score, [item("0")])] == [1.0]
    log = (tmp_path / "reward-0.log").read_text()
    assert f'File "{file}", line 4 in compute_score' in log


def test_workers_that_rewards_freeze_stay_within_their_restarts() -> None:
    window = {field.name: field.default for field in msgspec.structs.fields(ProcessSpec)}["restart_window"]
    for timeout in (0.1, 1.0, 15.0, 300.0):
        budget = RestartBudget(RESTARTS, window)
        ends = [number * (timeout + frozen_margin(timeout)) for number in range(1, 20)]
        assert all(budget.ended(end, Ending("exit code 1", [])).restarting for end in ends)


class MortalJudge(RewardWorker):
    """Dies under a call with an answer of two letters; ``unlucky`` calls of others are in flight when it does."""

    asked: ClassVar[list[list[str]]] = []
    unlucky: ClassVar[list[str]] = []

    @endpoint
    async def score(self, items: list[RewardItem]) -> list[RewardResult]:
        texts = [each.solution_str for each in items]
        self.asked.append(texts)
        if any(len(text) == 2 for text in texts):
            raise ActorDied("reward-0", "exit code 1")
        if texts[0] in self.unlucky:
            self.unlucky.remove(texts[0])
            raise ActorDied("reward-0", "exit code 1")
        return await super().score(items)


@pytest.fixture
def mortal_judge(monkeypatch: pytest.MonkeyPatch) -> type[MortalJudge]:
    monkeypatch.setattr(MortalJudge, "asked", [])
    monkeypatch.setattr(MortalJudge, "unlucky", [])
    return MortalJudge


def growing(request: GenerateRequest) -> list[int]:
    return ([LETTER] * (int(request.session) + 1))[request.drawn :]


async def test_an_answer_under_which_every_judge_dies_fails_alone_and_within_the_restarts(
    tmp_path: Path, mortal_judge: type[MortalJudge]
) -> None:
    async with agent_room(tmp_path, SpyEngine(growing), judge=mortal_judge) as room:
        await room.issue(group("a", sessions=3))
        [marker] = await room.settled("a")
        assert list(await room.queue.kv_list("train", {"status": "success"})) == ["a_0_0", "a_2_0"]
    cause = "its reward worker died each of 3 times that it judged this answer: reward-0 died: exit code 1"
    assert (marker["status"], marker["metric"]) == ("failure", [1.0, 3.0])
    assert marker["failures"] == [f"session 1: reward: {cause}"]
    assert sum(any(len(text) == 2 for text in texts) for texts in mortal_judge.asked) == 3 <= RESTARTS
    assert mortal_judge.asked[0] == mortal_judge.asked[1] + mortal_judge.asked[2] + mortal_judge.asked[4]


async def test_an_answer_whose_judge_dies_of_another_once_more_is_judged(tmp_path: Path, mortal_judge: type[MortalJudge]) -> None:
    async with agent_room(tmp_path, SpyEngine(lambda request: [LETTER][request.drawn :]), judge=mortal_judge) as room:
        text = "".join(await first_answer(room, mortal_judge))
        mortal_judge.unlucky += [text, text]
        await room.issue(group("b", sessions=2))
        [marker] = await room.settled("b")
    assert (marker["status"], marker["metric"]) == ("finished", [1.0, 1.0])


async def first_answer(room: AgentRoom, judge: type[MortalJudge]) -> list[str]:
    await room.issue(group("a", sessions=1))
    await room.settled("a")
    return judge.asked[0]
