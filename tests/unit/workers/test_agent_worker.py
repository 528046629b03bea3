"""An agent worker over a real queue: markers, cancelling, what is saved of running groups, and how they go on from it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asyncrl.agents.loop import SessionContext
from asyncrl.agents.loops import AGENT_LOOPS
from asyncrl.errors import ActorError
from asyncrl.runtime import ActorSystem
from asyncrl.trajectory import GenerateRequest, Kept, SamplingParams, Status, StopReason, Trajectory
from asyncrl.workers.agent import AgentWorker
from asyncrl.workers.rollout import RolloutWorker
from tests.unit.workers.agent_room import AgentRoom, agent_room, group, write_files
from tests.unit.workers.engine_room import HeldDevice, SpyEngine

LETTERS = 8
"""Token ids from here on are one character each."""


def letters(request: GenerateRequest, ends: int = 99) -> list[int]:
    """Session n is answered with n + 1 tokens if ``ends`` allows it, else without an end."""
    length = min(int(request.session.replace("g", "3")) + 1, ends)
    return [LETTERS + place for place in range(length)][request.drawn :]


def endless(request: GenerateRequest) -> list[int]:
    return [LETTERS + (int(request.session) * 3 + place) % 20 for place in range(40)][request.drawn :]


async def rows(room: AgentRoom, uid: str) -> dict[str, Any]:
    listed = await room.queue.kv_list("train", {"status": "success"})
    return {key: tag for key, tag in listed.items() if tag["uid"] == uid}


async def test_the_marker_tells_the_oldest_trainable_version_and_the_metric_of_each_session(tmp_path: Path) -> None:
    engine = SpyEngine(letters)
    engine.load(4, [])
    async with agent_room(tmp_path, engine) as room:
        await room.issue(group("a", sessions=3), group("b", sessions=3, greedy_baseline=True, filter_metric="half"))
        plain, named = await room.settled("a", "b")
    assert (plain["status"], plain["failures"], plain["oldest_version"], plain["metric"]) == ("finished", [], 4, [1.0, 2.0, 3.0])
    assert (named["status"], named["metric"]) == ("finished", [0.5, 1.0, 1.5])


async def test_a_session_without_the_metric_fails_by_its_name(tmp_path: Path) -> None:
    def long(request: GenerateRequest) -> list[int]:
        return [LETTERS] * (9 if request.session == "1" else 2)

    async with agent_room(tmp_path, SpyEngine(long)) as room:
        await room.issue(group("a", sessions=3, max_tokens=20, filter_metric="half"))
        [marker] = await room.settled("a")
        assert list(await rows(room, "a")) == ["a_0_0", "a_2_0"]
    assert (marker["status"], marker["metric"]) == ("failure", [1.0, 1.0])
    reason = "session 1: reward: MissingComponent: the reward of row 'a_1_0' has no component 'half' that is a finite number; it has score"
    assert marker["failures"] == [reason]


async def test_a_group_in_which_every_session_failed_has_no_version_and_no_metric(tmp_path: Path) -> None:
    async with agent_room(tmp_path, SpyEngine()) as room:
        await room.issue(group("a", prompt=[{"role": "robot", "content": "hi"}]))
        [marker] = await room.settled("a")
    assert (marker["status"], marker["oldest_version"], marker["metric"]) == ("failure", None, [])


async def test_a_running_marker_tells_the_version_of_the_first_token_where_it_is_asked_for(tmp_path: Path) -> None:
    engine = SpyEngine(endless)
    engine.load(7, [])
    device = HeldDevice(engine)
    async with agent_room(tmp_path, engine, devices={0: device}) as room:
        place = device.hold_after(2)
        await room.issue(group("a", report_start=True), group("b"))
        await device.held(place)
        assert (await asyncio.wait_for(room.marker("a", Status.RUNNING, oldest_version=7), 10))["lease"] == 1
        assert "oldest_version" not in await room.marker("b", Status.RUNNING)
        engine.load(8, [])
        device.let_go(place)
        ended = await room.settled("a", "b")
    assert [marker["oldest_version"] for marker in ended] == [7, 7]


async def test_a_running_marker_forgets_the_version_of_tokens_that_died_with_an_engine(tmp_path: Path) -> None:
    engines = [SpyEngine(endless), SpyEngine(endless)]
    engines[0].load(3, [])
    engines[1].load(8, [])
    devices = {number: HeldDevice(engine) for number, engine in enumerate(engines)}
    async with agent_room(tmp_path, *engines, devices=devices) as room:
        places = [device.hold_after(2) for device in devices.values()]
        await room.issue(group("a", report_start=True))
        for number, place in enumerate(places):
            await devices[number].held(place)
        await asyncio.wait_for(room.marker("a", Status.RUNNING, oldest_version=3), 10)
        await room.system.stop("rollout-0", "killed")
        again = devices[1].hold_after(2)
        devices[1].let_go(places[1])
        await devices[1].held(again)
        await asyncio.wait_for(room.marker("a", Status.RUNNING, oldest_version=8), 10)
        devices[1].let_go(again)
        [ended] = await room.settled("a")
    assert ended["oldest_version"] == 8


async def test_a_cancelled_group_leaves_the_engine_at_once_and_puts_nothing(tmp_path: Path) -> None:
    engine = SpyEngine(endless)
    device = HeldDevice(engine)
    async with agent_room(tmp_path, engine, devices={0: device}) as room:
        place = device.hold_after(3)
        await room.issue(group("a"), group("b"), group("c", sessions=1))
        await device.held(place)
        await room.agent.call(AgentWorker.cancel, ["a", "c", "unknown"])
        device.let_go(place)
        [marker] = await room.settled("b")
        assert engine.unfinished == 0
        assert marker["metric"] == [6.0, 6.0]
        assert await rows(room, "a") == await rows(room, "c") == {}
        markers = await room.queue.kv_list("train", {"is_prompt": True})
        assert [markers[uid]["status"] for uid in ("a", "c")] == ["running", "running"]
        # Its name is free again.
        await room.issue(group("a", lease=2))
        await room.settled("a")
    assert engine.steps == 6 + 6


async def test_a_group_that_is_cancelled_before_it_began_does_not_hold_up_the_lockstep(tmp_path: Path) -> None:
    engine = SpyEngine(letters)
    async with agent_room(tmp_path, engine, lockstep=True) as room:
        await room.queue.kv_batch_put(["a", "b"], "train", tags=[{"is_prompt": True, "status": "pending", "lease": 1}] * 2)
        await asyncio.gather(room.agent.call(AgentWorker.run_groups, [group("a"), group("b")]), room.agent.call(AgentWorker.cancel, ["a"]))
        assert [marker["status"] for marker in await asyncio.wait_for(room.settled("b"), 10)] == ["finished"]
    assert {request.uid for request in engine.asked} == {"b"}


async def test_a_group_under_a_newer_lease_ends_the_one_before(tmp_path: Path) -> None:
    engine = SpyEngine(endless)
    device = HeldDevice(engine)
    async with agent_room(tmp_path, engine, devices={0: device}) as room:
        place = device.hold_after(2)
        await room.issue(group("a"))
        await device.held(place)
        await room.issue(group("a", lease=2))
        device.let_go(place)
        [marker] = await room.settled("a")
        assert marker["lease"] == 2
        assert len(await rows(room, "a")) == 2
        assert await room.agent.call(AgentWorker.partials) == []
        assert engine.unfinished == 0


async def paused_after(room: AgentRoom, device: HeldDevice, place: int) -> None:
    await device.held(place)
    pausing = asyncio.create_task(room.workers[0].call(RolloutWorker.pause))
    await room.workers[0].call(RolloutWorker.version)
    device.let_go(place)
    await pausing


async def test_what_was_sampled_is_saved_in_a_pause_and_a_new_issue_goes_on_from_it(tmp_path: Path) -> None:
    def uneven(request: GenerateRequest) -> list[int]:
        return endless(request)[: 1 if request.session == "1" else 40]

    engine = SpyEngine(uneven)
    device = HeldDevice(engine)
    async with agent_room(tmp_path / "first", engine, devices={0: device}) as room:
        place = device.hold_after(3)
        await room.issue(group("a", sessions=3), group("b", sessions=1))
        await paused_after(room, device, place)
        partials = {partial.uid: partial for partial in await room.agent.call(AgentWorker.partials)}
    prompt = engine.asked[0].prompt_ids
    kept = partials["a"].sessions
    assert kept["0"] == Kept(prompt_ids=prompt, token_ids=[8, 9, 10], log_probs=[-1.0] * 3, versions=[0] * 3)
    assert kept["1"] == Kept(prompt_ids=prompt, token_ids=[11], log_probs=[-1.0], versions=[0], stop_reason=StopReason.STOP)
    assert list(partials["b"].sessions) == ["0"]

    again = SpyEngine(uneven)
    again.load(9, [])
    async with agent_room(tmp_path / "second", again) as room:
        await room.issue(group("a", sessions=3, lease=2, kept=kept, report_start=True), group("b", sessions=1, lease=2))
        marker, fresh = await room.settled("a", "b")
        columns = await room.queue.kv_batch_get(["a_0_0", "a_1_0", "a_2_0"], "train", ["responses", "rollout_versions"])
    assert [(request.uid, request.session, request.drawn) for request in again.asked] == [("a", "0", 3), ("a", "2", 3), ("b", "0", 0)]
    assert [request.sampling.max_tokens for request in again.asked] == [3, 3, 6]
    assert columns["responses"].to_list() == [list(range(8, 14)), [11], list(range(14, 20))]
    assert columns["rollout_versions"].to_list() == [[0, 0, 0, 9, 9, 9], [0], [0, 0, 0, 9, 9, 9]]
    assert (marker["oldest_version"], fresh["oldest_version"]) == (0, 9)


class ToolLoop:
    """Two turns with a tool call between them, which takes as long as the test wants."""

    def __init__(self) -> None:
        self.called, self.answer = asyncio.Event(), asyncio.Event()

    async def run(self, session: SessionContext) -> list[Trajectory]:
        first = await session.generate(self._turn(session, 0, session.prompt_ids, 0))
        self.called.set()
        await self.answer.wait()
        tool = [20, 21]
        second = await session.generate(self._turn(session, 1, session.prompt_ids + first.token_ids + tool, len(first.token_ids)))
        assert StopReason.ABORT not in (first.stop_reason, second.stop_reason)
        return [
            Trajectory(
                prompt_ids=session.prompt_ids,
                response_ids=first.token_ids + tool + second.token_ids,
                response_mask=[1] * len(first.token_ids) + [0, 0] + [1] * len(second.token_ids),
                log_probs=[*first.log_probs, 0.0, 0.0, *second.log_probs],
                versions=[*first.versions, -1, -1, *second.versions],
                num_turns=4,
            )
        ]

    def _turn(self, session: SessionContext, turn: int, prompt_ids: list[int], drawn: int) -> GenerateRequest:
        return GenerateRequest(
            request_id=session.request_id(turn),
            uid=session.uid,
            session=session.session,
            prompt_ids=prompt_ids,
            sampling=SamplingParams(max_tokens=4),
            seed=session.seed,
            drawn=drawn,
        )


@pytest.fixture
def tool_loop(monkeypatch: pytest.MonkeyPatch) -> ToolLoop:
    loop = ToolLoop()
    monkeypatch.setitem(AGENT_LOOPS, "tool_agent", loop)
    return loop


async def test_a_loop_of_several_turns_sees_nothing_of_pauses_and_its_tool_goes_on(tmp_path: Path, tool_loop: ToolLoop) -> None:
    engine = SpyEngine(endless)
    device = HeldDevice(engine)
    async with agent_room(tmp_path, engine, devices={0: device}) as room:
        place = device.hold_after(2)
        await room.issue(group("a", sessions=1, max_tokens=20, agent_name="tool_agent"))
        await paused_after(room, device, place)
        engine.load(1, [])
        await room.workers[0].call(RolloutWorker.resume)
        await asyncio.wait_for(tool_loop.called.wait(), 10)
        await room.workers[0].call(RolloutWorker.pause)
        tool_loop.answer.set()
        engine.load(2, [])
        place = device.hold_after(1)
        await room.workers[0].call(RolloutWorker.resume)
        await paused_after(room, device, place)
        [partial] = await room.agent.call(AgentWorker.partials)
        engine.load(3, [])
        await room.workers[0].call(RolloutWorker.resume)
        [marker] = await room.settled("a")
        columns = await room.queue.kv_batch_get(["a_0_0"], "train", ["responses", "rollout_versions", "response_mask"])
    assert columns["responses"].to_list() == [[8, 9, 10, 11, 20, 21, 12, 13, 14, 15]]
    assert columns["rollout_versions"].to_list() == [[0, 0, 1, 1, -1, -1, 2, 3, 3, 3]]
    assert columns["response_mask"].to_list() == [[1, 1, 1, 1, 0, 0, 1, 1, 1, 1]]
    assert marker["oldest_version"] == 0
    # Of a later turn nothing can be used by a session that begins again: it is asked for another prompt.
    assert partial.sessions["0"].token_ids == [12]
    restarted = SpyEngine(endless)
    async with agent_room(tmp_path / "again", restarted) as room:
        await room.issue(group("a", sessions=1, max_tokens=20, lease=2, agent_name="tool_agent", kept=partial.sessions))
        await room.settled("a")
    assert [request.drawn for request in restarted.asked] == [0, 4]


async def test_a_group_that_names_no_loop_fails_with_the_names_that_there_are(tmp_path: Path) -> None:
    async with agent_room(tmp_path, SpyEngine()) as room:
        await room.issue(group("a", sessions=1, agent_name="singel_turn"))
        [marker] = await room.settled("a")
    assert marker["failures"] == ["session 0: DataError: no agent loop is called 'singel_turn'; there is single_turn_agent"]


async def test_a_life_that_was_not_connected_yet_has_nothing_to_save_and_takes_no_groups(tmp_path: Path) -> None:
    write_files(tmp_path)
    async with ActorSystem.local() as system:
        agent = await system.spawn(AgentWorker, str(tmp_path), 64, None, {}, 10.0, False, name="agent-0")
        assert await agent.call(AgentWorker.partials) == []
        await agent.call(AgentWorker.cancel, ["a"])
        with pytest.raises(ActorError, match="agent-0 was not connected to the engines"):
            await agent.call(AgentWorker.run_groups, [group("a")])
