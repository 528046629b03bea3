"""Pausing an engine: what its clients get, that nothing is lost, and that every token is of the version it carries."""

import asyncio
from typing import Any

import pytest

from asyncrl.errors import RolloutError
from asyncrl.rollout.embedded import EmbeddedEngine
from asyncrl.trajectory import GenerateOutput, GenerateRequest, StopReason
from asyncrl.workers.rollout import RolloutWorker
from tests.unit.rollout.tiny import ask as tiny_ask, drain, engine_of, plain_log_probs, qwen
from tests.unit.workers.engine_room import HeldDevice, SpyEngine, ask, engine_room, settle

LENGTH = 7


async def interrupted(engine: EmbeddedEngine, requests: list[GenerateRequest], cut: int, weights: Any) -> dict[str, GenerateOutput]:
    """Answers with a pause after ``cut`` steps, in which ``weights`` become version 1."""
    device = HeldDevice(engine)
    async with engine_room(engine, devices={0: device}) as room:
        answers = {request.request_id: asyncio.create_task(room.router.generate(request)) for request in requests}
        place = device.hold_after(cut)
        await device.held(place)
        pausing = asyncio.create_task(room.workers[0].call(RolloutWorker.pause))
        await settle(room)
        device.let_go(place)
        assert await pausing == len(requests)
        await room.workers[0].call(RolloutWorker.sleep)
        await device.run(engine.load, 1, weights)
        await room.workers[0].call(RolloutWorker.resume)
        return {name: await asyncio.wait_for(answer, 10) for name, answer in answers.items()}


def mixed() -> list[GenerateRequest]:
    """More requests than slots, so that some have no token when they are cut; greedy ones and sampled ones, uneven prompts."""
    return [tiny_ask(number, 2 + number, max_tokens=LENGTH, temperature=(0.0, 1.0, 0.7)[number % 3]) for number in range(6)]


@pytest.mark.parametrize("cut", range(1, LENGTH))
async def test_an_answer_cut_anywhere_is_the_answer_that_was_never_cut(cut: int) -> None:
    model, requests = qwen(), mixed()
    whole = engine_of(model)
    whole.submit(requests)
    expected = drain(whole)
    outputs = await interrupted(engine_of(model), requests, cut, model.named_parameters())
    for request in requests:
        output, other = outputs[request.request_id], expected[request.request_id]
        assert output.token_ids == other.token_ids
        assert output.log_probs == pytest.approx(other.log_probs, abs=1e-5)
        assert output.stop_reason is StopReason.LENGTH
    assert outputs["r0_0"].versions == [0] * cut + [1] * (LENGTH - cut)
    assert outputs["r5_0"].versions == [1] * LENGTH


@pytest.mark.parametrize("cut", [1, 3, LENGTH - 1])
async def test_each_log_prob_is_exactly_that_of_the_version_it_is_stamped_with(cut: int) -> None:
    old, new, requests = qwen(0), qwen(1), mixed()
    outputs = await interrupted(engine_of(old), requests, cut, new.named_parameters())
    for request in requests:
        output, temperature = outputs[request.request_id], request.sampling.temperature or 1.0
        by_version = [plain_log_probs(model, request.prompt_ids, output.token_ids, temperature) for model in (old, new)]
        expected = [by_version[version][place] for place, version in enumerate(output.versions)]
        assert output.log_probs == pytest.approx(expected, abs=1e-5)
        assert len(output.token_ids) == LENGTH
    assert outputs["r1_0"].versions == [0] * cut + [1] * (LENGTH - cut)
    # The other version would have been noticed.
    one = outputs["r1_0"]
    assert max(abs(a - b) for a, b in zip(one.log_probs, plain_log_probs(old, requests[1].prompt_ids, one.token_ids), strict=True)) > 1e-3


async def test_the_budget_is_pinned_over_two_pauses() -> None:
    engine = SpyEngine()
    device = HeldDevice(engine)
    async with engine_room(engine, devices={0: device}) as room:
        answer = asyncio.create_task(room.router.generate(ask(1, max_tokens=10)))
        place = device.hold_after(4)
        for following in (3, 99):
            await device.held(place)
            pausing = asyncio.create_task(room.workers[0].call(RolloutWorker.pause))
            await settle(room)
            device.let_go(place)
            assert await pausing == 1
            place = device.hold_after(following)
            await room.workers[0].call(RolloutWorker.resume)
        output = await asyncio.wait_for(answer, 10)
    assert [(request.sampling.max_tokens, request.drawn) for request in engine.asked] == [(10, 0), (6, 4), (3, 7)]
    assert output.token_ids == list(range(100, 110))
    assert output.stop_reason is StopReason.LENGTH
    assert output.request_id == "u0_1/0"


async def test_requests_that_come_in_a_pause_are_taken_and_wait_by_name() -> None:
    engine = SpyEngine()
    async with engine_room(engine) as room:
        worker = room.workers[0]
        assert await worker.call(RolloutWorker.pause) == 0
        answers = [asyncio.create_task(room.router.generate(ask(session))) for session in range(3)]
        await settle(room)
        assert engine.steps == 0
        assert [wait.what for wait in room.system.waits.snapshot() if wait.who == "controller"] == ["a resume (3 requests wait)"]
        assert await worker.call(RolloutWorker.pause) == 0
        await worker.call(RolloutWorker.resume)
        await worker.call(RolloutWorker.resume)
        outputs = await asyncio.wait_for(asyncio.gather(*answers), 10)
    assert [output.token_ids for output in outputs] == [[100 * session + place for place in range(8)] for session in range(3)]


async def test_a_pause_waits_for_the_step_in_progress_by_name_and_goes_on_without_its_caller() -> None:
    engine = SpyEngine()
    device = HeldDevice(engine)
    async with engine_room(engine, devices={0: device}) as room:
        worker = room.workers[0]
        answer = asyncio.create_task(room.router.generate(ask(0)))
        place = device.hold_after(3)
        await device.held(place)
        first = asyncio.create_task(worker.call(RolloutWorker.pause))
        second = asyncio.create_task(worker.call(RolloutWorker.pause))
        opened = asyncio.create_task(worker.call(RolloutWorker.resume))
        await settle(room)
        waits = [wait.what for wait in room.system.waits.snapshot() if wait.who == "device"]
        assert waits == ["the end of an engine's step, for a pause"] * 2 + ["the end of a pause's abort, to resume"]
        first.cancel()
        await settle(room)
        device.let_go(place)
        # The first pause shuts the gate although nobody waits for it; the second counts it; then it opens.
        assert await second == 1
        await opened
        output = await asyncio.wait_for(answer, 10)
    assert output.token_ids == list(range(8))
    assert [request.drawn for request in engine.asked] == [0, 3]


async def test_orders_that_overlap_are_followed_in_their_order() -> None:
    engine = SpyEngine()
    device = HeldDevice(engine)
    async with engine_room(engine, devices={0: device}) as room:
        answer = asyncio.create_task(room.router.generate(ask(0)))
        place = device.hold_after(2)
        await device.held(place)
        orders = [RolloutWorker.pause, RolloutWorker.resume, RolloutWorker.resume, RolloutWorker.pause]
        asked = [asyncio.create_task(room.workers[0].call(order)) for order in orders]
        await settle(room)
        device.let_go(place)
        assert (await asyncio.gather(*asked))[:3] == [1, None, None]
        steps = engine.steps
        await settle(room)
        await settle(room)
        assert engine.steps == steps <= 3
        assert not answer.done()
        await room.workers[0].call(RolloutWorker.resume)
        assert (await asyncio.wait_for(answer, 10)).token_ids == list(range(8))


async def test_nothing_waits_for_the_device_but_the_pump() -> None:
    engine = SpyEngine()
    device = HeldDevice(engine)
    async with engine_room(engine, devices={0: device}) as room:
        worker = room.workers[0]
        answers = [asyncio.create_task(room.router.generate(ask(0)))]
        place = device.hold_after(1)
        await device.held(place)
        answers.append(asyncio.create_task(room.router.generate(ask(1))))
        answers.append(asyncio.create_task(room.router.generate(ask(2))))
        await settle(room)
        answers[2].cancel()
        await settle(room)
        assert [wait.what for wait in room.system.waits.snapshot() if "submit" in wait.what or "withdraw" in wait.what] == []
        device.let_go(place)
        assert len((await asyncio.wait_for(answers[1], 10)).token_ids) == 8
        await worker.call(RolloutWorker.pause)
        assert engine.unfinished == 0
        await worker.call(RolloutWorker.resume)
        await asyncio.gather(answers[0], return_exceptions=True)
    assert "2" not in [request.session for request in engine.asked]


async def test_an_engine_without_weights_takes_requests_and_waits_for_them_by_name() -> None:
    engine = SpyEngine(loaded=False)
    async with engine_room(engine) as room:
        answer = asyncio.create_task(room.router.generate(ask(0)))
        await settle(room)
        assert [wait.what for wait in room.system.waits.snapshot() if wait.who == "controller"] == ["weights (1 requests wait)"]
        engine.load(4, [])
        await room.workers[0].call(RolloutWorker.resume)
        output = await asyncio.wait_for(answer, 10)
        assert output.versions == [4] * 8
        engine.load(5, [])
        assert (await asyncio.wait_for(room.router.generate(ask(1)), 10)).versions == [5] * 8


async def test_a_client_needs_a_stream_and_has_one() -> None:
    async with engine_room(SpyEngine()) as room:
        with pytest.raises(RolloutError, match="nobody has no open stream"):
            await room.workers[0].call(RolloutWorker.submit, "nobody", [ask(0)])
        await settle(room)
        stream = room.workers[0].stream(RolloutWorker.answers, "agent-0.0/1")
        with pytest.raises(RolloutError, match="has an open stream"):
            await anext(stream)


async def test_a_request_id_in_flight_is_refused_and_the_first_is_answered() -> None:
    engine = SpyEngine()
    async with engine_room(engine) as room:
        worker = room.workers[0]
        await worker.call(RolloutWorker.pause)
        stream = worker.stream(RolloutWorker.answers, "me")
        await anext(stream)
        await worker.call(RolloutWorker.submit, "me", [ask(0), ask(1), ask(0)])
        [refused] = (await anext(stream)).refused
        assert "in flight" in refused.reason
        await worker.call(RolloutWorker.resume)
        found: list[GenerateOutput] = []
        while len(found) < 2:
            found += (await anext(stream)).outputs
        assert sorted(output.request_id for output in found) == ["u0_0/0", "u0_1/0"]
        await worker.call(RolloutWorker.submit, "me", [ask(0)])
        assert [output.request_id for output in (await anext(stream)).outputs] == ["u0_0/0"]
        await stream.aclose()


async def test_a_first_token_is_told_in_the_batch_in_which_it_occurs() -> None:
    engine = SpyEngine(max_num_seqs=1)
    async with engine_room(engine) as room:
        stream = room.workers[0].stream(RolloutWorker.answers, "me")
        await anext(stream)
        requests = [ask(0, max_tokens=1, report_start=True), ask(1, max_tokens=2), ask(2, max_tokens=2, report_start=True)]
        await room.workers[0].call(RolloutWorker.submit, "me", requests)
        seen: list[tuple[list[str], list[str]]] = []
        while sum(len(outputs) for outputs, _ in seen) < 3:
            answers = await anext(stream)
            assert all(first.version == 0 for first in answers.started)
            seen.append(([output.request_id for output in answers.outputs], [first.request_id for first in answers.started]))
        await stream.aclose()
    assert seen == [(["u0_0/0"], ["u0_0/0"]), (["u0_1/0"], []), ([], ["u0_2/0"]), (["u0_2/0"], [])]
