"""Engines that die, come back or stay away, and clients that leave: who goes on where, and that no engine works for nobody."""

import asyncio
import os
import signal
from contextlib import aclosing
from pathlib import Path

import pytest

from asyncrl.errors import EngineUnavailable, RolloutError
from asyncrl.rollout.continuation import Continuation
from asyncrl.runtime import ActorRef, ActorSystem, Liveness
from asyncrl.runtime.tasks import running
from asyncrl.training.device_thread import InlineDevice
from asyncrl.trajectory import GenerateOutput
from asyncrl.workers.engines import EngineClient, EngineRouter
from asyncrl.workers.rollout import RolloutWorker
from tests.unit.workers.engine_room import HeldDevice, SpyEngine, ask, engine_room, script, settle
from tests.unit.workers.mortal_engine import MortalEngine


async def test_sessions_of_a_dead_engine_go_on_at_another_from_the_tokens_that_they_have() -> None:
    engines = [SpyEngine(), SpyEngine()]
    devices = {number: HeldDevice(engine) for number, engine in enumerate(engines)}
    async with engine_room(*engines, devices=devices) as room:
        first = [devices[number].hold_after(2) for number in (0, 1)]
        answers = [asyncio.create_task(room.router.generate(ask(session))) for session in range(4)]
        for number in (0, 1):
            await devices[number].held(first[number])
        # A pause gives two tokens back; then one engine dies while its sessions run again.
        pauses = [asyncio.create_task(worker.call(RolloutWorker.pause)) for worker in room.workers]
        await settle(room)
        second = [devices[number].hold_after(3) for number in (0, 1)]
        for number in (0, 1):
            devices[number].let_go(first[number])
        assert await asyncio.gather(*pauses) == [2, 2]
        for number, engine in enumerate(engines):
            engine.load(number + 1, [])
            await room.workers[number].call(RolloutWorker.resume)
            await devices[number].held(second[number])
        await room.system.stop("rollout-0", "killed")
        devices[1].let_go(second[1])
        outputs = await asyncio.wait_for(asyncio.gather(*answers), 10)
    assert [output.token_ids for output in outputs] == [script(ask(session), 8) for session in range(4)]
    # Of the two that died two tokens were kept, what the dead engine drew after them was not; their versions are exact.
    assert [output.versions for output in outputs] == [[0] * 2 + [2] * 6] * 4
    assert [request.drawn for request in engines[1].asked] == [0, 0, 2, 2, 2, 2]
    assert [request.drawn for request in engines[0].asked] == [0, 0, 2, 2]


async def test_later_sessions_avoid_the_dead_engine_and_the_others_stay_where_they_are() -> None:
    engines = [SpyEngine(), SpyEngine(), SpyEngine()]
    async with engine_room(*engines) as room:
        requests = [ask(session, uid=f"u{number}") for number in range(8) for session in range(3)]
        await asyncio.gather(*(room.router.generate(request) for request in requests))
        homes = [{request.request_id.split("@")[0] for request in engine.asked} for engine in engines]
        assert [len(home) for home in homes] == [8, 8, 8]
        await room.system.stop("rollout-2")
        await settle_without(room.workers[:2])
        for engine in engines:
            engine.asked.clear()
        await asyncio.gather(*(room.router.generate(request) for request in requests))
        after = [{request.request_id.split("@")[0] for request in engine.asked} for engine in engines]
        assert after[2] == set()
        assert after[0] >= homes[0]
        assert after[1] >= homes[1]
        assert min(len(after[0]), len(after[1])) > 8


async def settle_without(workers: list[ActorRef[RolloutWorker]]) -> None:
    for worker in workers:
        await worker.call(RolloutWorker.version)


async def test_without_an_engine_a_session_waits_by_name_and_fails_with_the_cause() -> None:
    async with engine_room(SpyEngine(), patience=0.3) as room:
        await room.router.generate(ask(0))
        await room.system.stop("rollout-0", "out of memory")
        answer = asyncio.create_task(room.router.generate(ask(1)))
        await asyncio.sleep(0.05)
        [wait] = [wait for wait in room.system.waits.snapshot() if wait.who == "engines"]
        assert "one that lives (engine rollout-0@main" in wait.what
        with pytest.raises(EngineUnavailable, match=r"no engine lived for 0.3 s; engine rollout-0@main: .*"):
            await asyncio.wait_for(answer, 3 * 0.3)


async def test_an_engine_that_was_given_up_is_found_again_when_a_session_misses_it() -> None:
    async with engine_room(SpyEngine()) as room:
        await room.router.generate(ask(0))
        for life in (1, 2):
            await room.system.stop("rollout-0")
            answer = asyncio.create_task(room.router.generate(ask(1)))
            await quiet()
            assert not answer.done()
            again = SpyEngine()
            again.load(life, [])
            await room.system.spawn(RolloutWorker, InlineDevice(), again, name="rollout-0")
            # The next session that finds none looks for it, for the others too.
            output = await asyncio.wait_for(room.router.generate(ask(2)), 10)
            assert output.versions == [life] * 8
            assert (await asyncio.wait_for(answer, 10)).token_ids == script(ask(1), 8)


async def quiet() -> None:
    """Until every stream that can be tried has been."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_an_engine_that_is_replaced_answers_the_sessions_it_had(tmp_path: Path) -> None:
    quick = Liveness(heartbeat=0.2, dead_after=0.6)
    async with ActorSystem.start("main", log_folder=str(tmp_path), liveness=quick) as system:
        engine = await system.spawn(MortalEngine, name="engine-0", process="new", restarts=1)
        client = EngineClient("agent-0.0", system.ref(engine.address, RolloutWorker))
        router = EngineRouter([client], None, system.waits, patience=30.0)
        async with running(client.follow):
            answers = [asyncio.create_task(router.generate(ask(session))) for session in range(3)]
            os.kill(await engine.call(MortalEngine.stuck), signal.SIGKILL)
            outputs = await asyncio.wait_for(asyncio.gather(*answers), 30)
    assert [output.token_ids for output in outputs] == [script(ask(session), 8) for session in range(3)]
    assert [output.versions for output in outputs] == [[1] * 8] * 3


async def test_who_catches_up_has_seen_all_that_was_given_back_before() -> None:
    engine = SpyEngine()
    device = HeldDevice(engine)
    async with engine_room(engine, devices={0: device}) as room:
        answers = [Continuation(ask(session)) for session in range(3)]
        running = [asyncio.create_task(room.router.complete(answer)) for answer in answers]
        for cut in (2, 4):
            place = device.hold_after(2)
            if cut == 4:
                await room.workers[0].call(RolloutWorker.resume)
            await device.held(place)
            pausing = asyncio.create_task(room.workers[0].call(RolloutWorker.pause))
            await settle(room)
            device.let_go(place)
            await pausing
            await room.router.catch_up()
            assert [len(answer.kept.token_ids) for answer in answers] == [cut] * 3
        catching = asyncio.create_task(room.router.catch_up())
        await room.system.stop("rollout-0")
        # Nothing more will come of an engine that is gone.
        await asyncio.wait_for(catching, 10)
        await asyncio.wait_for(room.router.catch_up(), 10)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_a_cancelled_session_leaves_nothing_in_the_engine_and_the_others_go_on() -> None:
    engine = SpyEngine(max_num_seqs=2)
    device = HeldDevice(engine)
    async with engine_room(engine, devices={0: device}) as room:
        place = device.hold_after(3)
        answers = [asyncio.create_task(room.router.generate(ask(session))) for session in range(4)]
        await device.held(place)
        later = asyncio.create_task(room.router.generate(ask(4)))
        await settle(room)
        for cancelled in (answers[0], answers[3], later):
            cancelled.cancel()
        await settle(room)
        device.let_go(place)
        outputs = await asyncio.wait_for(asyncio.gather(answers[1], answers[2]), 10)
        assert [output.token_ids for output in outputs] == [script(ask(session), 8) for session in (1, 2)]
        assert engine.unfinished == 0
        # Session 0 took three steps of one slot; its slot then went to session 2, and session 3 never ran.
        assert engine.steps == 11
    assert [request.session for request in engine.asked] == ["0", "1", "2", "3"]


async def test_a_client_whose_stream_ends_takes_its_requests_with_it() -> None:
    engine = SpyEngine()
    async with engine_room(engine) as room:
        worker = room.workers[0]
        await worker.call(RolloutWorker.pause)
        async with aclosing(worker.stream(RolloutWorker.answers, "me")) as stream:
            await anext(stream)
            await worker.call(RolloutWorker.submit, "me", [ask(0, uid="mine"), ask(1, uid="mine")])
        await settle(room)
        with pytest.raises(RolloutError, match="no open stream"):
            await worker.call(RolloutWorker.submit, "me", [ask(2, uid="mine")])
        await worker.call(RolloutWorker.resume)
        await room.router.generate(ask(0))
    assert [request.uid for request in engine.asked] == ["u0"]


async def test_nobody_withdraws_what_belongs_to_another() -> None:
    engine = SpyEngine()
    async with engine_room(engine) as room:
        worker = room.workers[0]
        await worker.call(RolloutWorker.pause)
        stream = worker.stream(RolloutWorker.answers, "me")
        await anext(stream)
        await worker.call(RolloutWorker.submit, "me", [ask(0)])
        await worker.call(RolloutWorker.withdraw, "you", ["u0_0/0"])
        await worker.call(RolloutWorker.resume)
        outputs: list[GenerateOutput] = (await anext(stream)).outputs
        assert [output.request_id for output in outputs] == ["u0_0/0"]
        await stream.aclose()
