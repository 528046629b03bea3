"""The seconds of an engine, by a clock that the test turns."""

import asyncio
from pathlib import Path

import pytest

from asyncrl.observe.events import read_events
from asyncrl.runtime import EventWriter, RealHost
from asyncrl.runtime.records import Spanned
from asyncrl.trajectory import GenerateOutput, StopReason
from asyncrl.workers.rollout import RolloutWorker
from asyncrl.workers.usage import GENERATE, EngineUsage, UsageMeter
from tests.unit.workers.engine_room import HeldDevice, SpyEngine, ask, engine_room, settle


class Clock:
    """Stands still unless it is turned."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def output(tokens: int) -> GenerateOutput:
    return GenerateOutput(
        request_id="r", token_ids=[1] * tokens, log_probs=[0.0] * tokens, versions=[0] * tokens, stop_reason=StopReason.ABORT
    )


def test_every_second_is_of_one_kind_and_counts_once() -> None:
    clock = Clock()
    meter = UsageMeter(clock, None)
    clock.now += 2
    with meter.generating():
        clock.now += 5
    clock.now += 1
    meter.waits(paused=True)
    clock.now += 3
    meter.give_back([output(4), output(0), output(2)])
    used = meter.take()
    assert used == EngineUsage(generating=5, paused=3, idle=3, given_back=6)
    assert used.waited == 6
    clock.now += 7
    meter.waits(paused=False)
    clock.now += 1
    with meter.generating():
        clock.now += 2
        assert meter.take() == EngineUsage(generating=2, paused=7, idle=1)
        clock.now += 4
    assert meter.take() == EngineUsage(generating=4)


def test_a_stretch_of_generation_is_a_span_of_the_event_file(tmp_path: Path) -> None:
    path = str(tmp_path / "engine-0.msgpack")
    with EventWriter(path, RealHost(), process="engine") as events:
        meter = UsageMeter(RealHost().clock, events)
        for _ in range(2):
            with meter.generating():
                pass
    spans = [event.record for event in read_events(path) if isinstance(event.record, Spanned)]
    assert [span.name for span in spans] == [GENERATE] * 2
    assert sum(span.seconds for span in spans) == pytest.approx(meter.take().generating, abs=0.01)


async def test_a_worker_tells_what_a_pause_cost_and_tells_it_once() -> None:
    engine = SpyEngine()
    device = HeldDevice(engine)
    async with engine_room(engine, devices={0: device}) as room:
        worker = room.workers[0]
        answers = [asyncio.create_task(room.router.generate(ask(session))) for session in range(2)]
        place = device.hold_after(3)
        await device.held(place)
        pausing = asyncio.create_task(worker.call(RolloutWorker.pause))
        await settle(room)
        device.let_go(place)
        assert await pausing == 2
        used = await worker.call(RolloutWorker.take_usage)
        assert used.given_back == 6
        assert used.generating > 0
        await worker.call(RolloutWorker.resume)
        await asyncio.gather(*answers)
        after = await worker.call(RolloutWorker.take_usage)
    assert after.given_back == 0
    assert after.generating > 0 < after.paused
