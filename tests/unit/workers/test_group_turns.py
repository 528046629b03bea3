"""The oldest version that a running group tells: of the tokens that it has, and of no others."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from asyncrl.errors import EngineUnavailable
from asyncrl.trajectory import GenerateRequest, Kept, PolicyVersion
from asyncrl.workers.rollout import RolloutWorker
from asyncrl.workers.turns import GroupTurns
from tests.unit.workers.agent_room import group
from tests.unit.workers.engine_room import EngineRoom, HeldDevice, SpyEngine, ask, engine_room, settle


class Fleet:
    """Engines that stop after a step, can be paused there and can die there."""

    def __init__(self, versions: Sequence[PolicyVersion]) -> None:
        self.engines = [SpyEngine(loaded=False) for _ in versions]
        for engine, version in zip(self.engines, versions, strict=True):
            engine.load(version, [])
        self.devices = {number: HeldDevice(engine) for number, engine in enumerate(self.engines)}

    def room(self, patience: float = 10.0) -> contextlib.AbstractAsyncContextManager[EngineRoom]:
        return engine_room(*self.engines, devices=self.devices, patience=patience)


async def oldest(turns: GroupTurns, expected: PolicyVersion | None) -> None:
    """Wait until the group tells this version."""
    async with asyncio.timeout(10):
        while turns.oldest != expected:
            turns.news.clear()
            await turns.news.wait()


def group_of(room: EngineRoom, **changes: Any) -> GroupTurns:
    return GroupTurns(group("u0", sessions=2, report_start=True, **changes), room.router)


# Session 0 of u0 has engine 0 of two as its own, session 1 engine 1.


async def test_a_first_token_that_died_with_its_engine_counts_no_more() -> None:
    fleet = Fleet([3, 7])
    async with fleet.room() as room:
        turns = group_of(room)
        old, new = fleet.devices[0].hold_after(2), fleet.devices[1].hold_after(1)
        answers = [asyncio.create_task(turns.generate(ask(session))) for session in (0, 1)]
        await fleet.devices[0].held(old)
        await fleet.devices[1].held(new)
        await oldest(turns, 3)
        await room.system.stop("rollout-0", "killed")
        fleet.devices[1].let_go(new)
        await oldest(turns, 7)
        outputs = await asyncio.wait_for(asyncio.gather(*answers), 10)
        assert turns.oldest == min(version for output in outputs for version in output.versions) == 7


async def test_what_an_engine_gave_back_before_it_died_goes_on_counting() -> None:
    fleet = Fleet([3, 7])
    async with fleet.room() as room:
        turns = group_of(room)
        answer = asyncio.create_task(turns.generate(ask(0)))
        place = fleet.devices[0].hold_after(2)
        await fleet.devices[0].held(place)
        pausing = asyncio.create_task(room.workers[0].call(RolloutWorker.pause))
        await settle(room)
        fleet.devices[0].let_go(place)
        assert await pausing == 1
        fleet.engines[0].load(5, [])
        place = fleet.devices[0].hold_after(2)
        await room.workers[0].call(RolloutWorker.resume)
        await fleet.devices[0].held(place)
        await room.system.stop("rollout-0", "killed")
        output = await asyncio.wait_for(answer, 10)
    assert output.versions == [3] * 2 + [7] * 6
    assert turns.oldest == 3


async def dies_in(fleet: Fleet, room: EngineRoom, turns: GroupTurns, request: GenerateRequest, version: PolicyVersion) -> None:
    """The session's engine draws for ``request`` with ``version``, and dies; the other one answers."""
    fleet.engines[0].load(version, [])
    place = fleet.devices[0].hold_after(2)
    answer = asyncio.create_task(turns.generate(request))
    await fleet.devices[0].held(place)
    await oldest(turns, version)
    await room.system.stop("rollout-0", "killed")
    await asyncio.wait_for(answer, 10)


async def test_tokens_of_an_earlier_turn_go_on_counting() -> None:
    fleet = Fleet([4, 7])
    async with fleet.room() as room:
        turns = group_of(room)
        await turns.generate(ask(0))
        assert turns.oldest == 4
        await dies_in(fleet, room, turns, msgspec.structs.replace(ask(0), request_id="u0_0/1", drawn=8), version=3)
        assert turns.oldest == 4


async def test_tokens_of_an_earlier_issue_go_on_counting() -> None:
    fleet = Fleet([4, 7])
    async with fleet.room() as room:
        turns = group_of(room, kept={"0": Kept(prompt_ids=[1, 2], token_ids=[0], log_probs=[-1.0], versions=[2])})
        await dies_in(fleet, room, turns, ask(0), version=1)
        assert turns.oldest == 2


async def test_a_turn_that_fails_leaves_no_version() -> None:
    fleet = Fleet([3])
    async with fleet.room(patience=0.05) as room:
        turns = group_of(room)
        place = fleet.devices[0].hold_after(2)
        answer = asyncio.create_task(turns.generate(ask(0)))
        await fleet.devices[0].held(place)
        await oldest(turns, 3)
        await room.system.stop("rollout-0", "killed")
        with pytest.raises(EngineUnavailable):
            await asyncio.wait_for(answer, 10)
        assert turns.oldest is None
        assert turns.news.is_set()
