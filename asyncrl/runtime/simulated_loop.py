"""The stock asyncio loop under a virtual clock: it never waits, it moves its clock to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextvars import Context
from random import Random
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVarTuple

from asyncrl.errors import SimulationStuck

if TYPE_CHECKING:
    from asyncrl.runtime.waits import WaitRegistry

Ts = TypeVarTuple("Ts")

LONGEST_RUN = 86_400.0
"""Virtual seconds of a run, unless said otherwise."""
TURN = 20e-6
"""Virtual seconds that one turn of the loop takes on average: a loop that only spins still gets to its deadlines."""
CLEANUP = 60.0
"""Virtual seconds in which a run that was too long may still cancel its tasks."""
TIE = 1e-6
"""How much later than asked a timer may fire, so that timers of one instant come in any order, as they may."""


class VirtualClock(selectors.BaseSelector):
    """Stands where the loop keeps its selector: instead of waiting it moves the clock. It has no descriptors."""

    def __init__(self, random: Random, limit: float, stuck: Callable[[str], NoReturn]) -> None:
        self.now = 0.0
        self._random, self._limit, self._stuck = random, limit, stuck

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Lets ``timeout`` virtual seconds pass, or one turn when something is ready. Raises SimulationStuck."""
        if timeout is None:
            self._stuck("nothing is ready and no timer is set")
        self.now += timeout or self._random.random() * 2 * TURN
        if self.now > self._limit:
            limit, self._limit = self._limit, self.now + CLEANUP
            self._stuck(f"still running after {limit:g} virtual seconds")
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> NoReturn:
        raise RuntimeError("a simulated loop reads no descriptors; use a simulated network")

    def unregister(self, fileobj: Any) -> NoReturn:
        raise KeyError(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}


class SimulatedTask(asyncio.Task[Any]):
    """A task whose place in a set is drawn from the seed and not from its address in memory.

    Task groups cancel their members in the order of a set.
    """

    def __init__(self, coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any], loop: SimulatedLoop, context: Context | None) -> None:
        self._place = loop.draw_place()
        super().__init__(coro, loop=loop, context=context)

    def __hash__(self) -> int:
        return self._place


class SimulatedLoop(asyncio.SelectorEventLoop):
    """One thread, no descriptors, virtual time from 0.

    The order of callbacks that asyncio promises is kept; ``seed`` decides what it leaves open: how long a turn takes, which
    of two timers of one instant fires first, the order of tasks in sets. Raises SimulationStuck out of ``run_forever`` when
    nothing can happen any more, or after ``limit`` virtual seconds: watchers that set their timer again and again keep a
    run without an end alive.
    """

    def __init__(self, seed: int = 0, limit: float = LONGEST_RUN) -> None:
        self._random = Random(f"loop {seed}")
        self._clock = VirtualClock(self._random, limit, self._stuck)
        self._registries: list[WaitRegistry] = []
        super().__init__(self._clock)
        self.set_task_factory(numbered)

    def time(self) -> float:
        return self._clock.now

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.TimerHandle:
        return super().call_at(when + self._random.random() * TIE, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], Any], *args: *Ts) -> NoReturn:
        raise RuntimeError("a simulated loop has no threads; run blocking functions through a simulated host")

    def draw_place(self) -> int:
        """The hash of the next task."""
        return self._random.getrandbits(48)

    def watch(self, waits: WaitRegistry) -> None:
        """The waits of this registry are named when the run is stuck."""
        self._registries.append(waits)

    def _stuck(self, cause: str) -> NoReturn:
        now = self.time()
        waits = [f"{wait.what} of {wait.who} since {wait.since:.6f}" for registry in self._registries for wait in registry.snapshot()]
        tasks = sorted(f"task {task.get_name()} {_place_of(task)}" for task in asyncio.all_tasks(self))
        raise SimulationStuck(cause, now, tuple(waits), tuple(tasks))

    # The stock loop wakes itself from other threads through a pair of sockets; here there are neither.
    def _make_self_pipe(self) -> None:
        """Nothing to make."""

    def _close_self_pipe(self) -> None:
        """Nothing to close."""

    def _write_to_self(self) -> None:
        """Nobody else to wake it."""


def numbered(loop: asyncio.AbstractEventLoop, coro: Any, context: Context | None = None) -> SimulatedTask:
    """Task factory of a simulated loop."""
    assert isinstance(loop, SimulatedLoop)
    return SimulatedTask(coro, loop, context)


def _place_of(task: asyncio.Task[Any]) -> str:
    names, place = [], ""
    awaited: Any = task.get_coro()
    while isinstance(awaited, CoroutineType) and awaited.cr_frame is not None:
        names.append(awaited.__qualname__)
        place = f"{awaited.cr_frame.f_code.co_filename}:{awaited.cr_frame.f_lineno}"
        awaited = awaited.cr_await
    return f"in {' > '.join(names)} ({place})"
