"""Pauses, resumes, requests and cancels in any order and at any moment: every answer comes, whole, once, and nothing is left."""

import asyncio
import contextlib

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from asyncrl.trajectory import GenerateOutput
from asyncrl.workers.rollout import RolloutWorker
from tests.unit.workers.engine_room import EngineRoom, SpyEngine, ask, engine_room, script, settle

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=3)


class PauseMachine(RuleBasedStateMachine):
    """Each rule only starts something; ``turn`` lets the loop go on a little, so that all of it overlaps."""

    @initialize(slots=st.integers(1, 4))
    def begin(self, slots: int) -> None:
        self.runner = asyncio.Runner()
        self.stack = contextlib.AsyncExitStack()
        self.engine = SpyEngine(max_num_seqs=slots)
        self.room: EngineRoom = self.runner.run(self.stack.enter_async_context(engine_room(self.engine)))
        self.sessions: dict[int, tuple[int, asyncio.Task[GenerateOutput]]] = {}
        self.orders: list[asyncio.Task[object]] = []
        self.last = "resume"
        self.shut = False
        self.steps_when_shut = 0
        self.cancelled: list[int] = []

    def start(self, method: str) -> None:
        self.last = method
        call = RolloutWorker.pause if method == "pause" else RolloutWorker.resume
        self.orders.append(self.runner.get_loop().create_task(self.room.workers[0].call(call)))

    @rule(lengths=LENGTHS)
    def ask_for(self, lengths: list[int]) -> None:
        for length in lengths:
            number = len(self.sessions)
            answer = self.room.router.generate(ask(number, max_tokens=length))
            self.sessions[number] = length, self.runner.get_loop().create_task(answer)

    @rule()
    def pause(self) -> None:
        self.shut = False
        self.start("pause")

    @rule()
    def resume(self) -> None:
        self.shut = False
        self.start("resume")

    @rule()
    def pause_and_wait(self) -> None:
        self.start("pause")
        self.runner.run(asyncio.wait_for(asyncio.gather(*self.orders), 10))
        self.shut, self.steps_when_shut = True, self.engine.steps

    @rule(choice=st.integers(0, 5))
    def cancel(self, choice: int) -> None:
        if choice < len(self.sessions):
            self.sessions[choice][1].cancel()
            self.cancelled.append(choice)

    @rule(turns=st.integers(1, 12))
    def turn(self, turns: int) -> None:
        async def go_on() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        self.runner.run(go_on())

    @invariant()
    def a_shut_engine_stands_still(self) -> None:
        if self.shut:
            assert self.engine.steps == self.steps_when_shut

    def teardown(self) -> None:
        try:
            self.shut = False
            self.runner.run(self.finish())
        finally:
            self.runner.run(self.stack.aclose())
            self.runner.close()

    async def finish(self) -> None:
        await asyncio.wait_for(asyncio.gather(*self.orders), 10)
        if self.last == "pause":
            await self.room.workers[0].call(RolloutWorker.resume)
        tasks = [task for _, task in self.sessions.values()]
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=10)
            assert not pending, self.room.system.waits.describe()
        for number, (length, task) in self.sessions.items():
            if task.cancelled():
                assert number in self.cancelled
                continue
            output = task.result()
            assert output.token_ids == script(ask(number), length)
            assert len(output.log_probs) == len(output.versions) == length
            assert output.stop_reason == "length"
        await settle(self.room)
        assert self.engine.unfinished == 0
        assert [wait.what for wait in self.room.system.waits.snapshot() if wait.who in ("device", "controller")] == []


TestPauseMachine = PauseMachine.TestCase
TestPauseMachine.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
