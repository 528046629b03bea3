"""One simulated run: processes, clients and faults drawn from a seed, and everything that must hold afterwards."""

import asyncio
import functools
import logging
from random import Random

from asyncrl.errors import AsyncRLError
from asyncrl.runtime.simulation import Trace
from tests.simulation.clients import Client, spread
from tests.simulation.invariants import check
from tests.simulation.workers import Worker
from tests.simulation.world import Life, World

QUIET = 60.0
"""Virtual seconds after the last fault in which everything comes to rest."""
PROBES = 48
"""Calls that check at the end of a run whether all credit has come back."""


class Scenario:
    """The run of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = World(seed)
        self.random = self.world.random
        self._operations = self.random.choice([40, 90, 160])
        self._length = spread(self.random, 1.0, 12.0)

    @property
    def trace(self) -> Trace:
        """What happened on the network."""
        return self.world.simulation.trace

    def report(self, problems: list[str]) -> str:
        """What went wrong, and how to see it again."""
        again = f"ASYNCRL_SEED={self.seed} pytest tests/simulation -k seed"
        return "\n".join([f"seed {self.seed}, again by: {again}", *problems[:20], "the last events:", *self.trace.lines()[-40:]])

    def run(self) -> list[str]:
        """Everything that went wrong."""
        errors = _Errors()
        logger = logging.getLogger("asyncrl")
        level = logger.level
        logger.setLevel(logging.ERROR)
        logger.addHandler(errors)
        try:
            self.world.simulation.run(self._main)
        except (AsyncRLError, RuntimeError) as error:
            return [*self.world.journal.problems, f"the run failed: {error!r}"]
        finally:
            logger.removeHandler(errors)
            logger.setLevel(level)
        return [*check(self.world), *errors.lines]

    async def _main(self) -> None:
        for number in range(self.random.randint(2, 5)):
            await self.world.start(f"p{number}")
        rate = self.random.choice([0.0, 0.3, 1.0])
        if rate:
            self.world.network.disturb(rate)
        clients = [Client(self.world, life, Random(f"{self.seed} {life.node} {n}")) for life in self.world.lives for n in range(2)]
        share = self._operations // len(clients)
        runs = [client.run(share, self._length / share * 2) for client in clients]
        await asyncio.gather(self._deaths(), *runs)
        self.world.network.heal()
        await asyncio.sleep(QUIET)
        self.world.journal.problems += check(self.world)
        self.world.journal.gate.set()
        await self._credit_is_back()
        await self._all_leave()

    async def _deaths(self) -> None:
        for _ in range(self.random.choice([0, 0, 1, 2, 3])):
            await asyncio.sleep(self._length * self.random.random() / 2)
            # The process that keeps the directory outlives the others.
            mortal = [life for life in self.world.current if self.world.known is None or life is not self.world.lives[0]]
            if not mortal:
                return
            life = self.random.choice(mortal)
            kind = self.random.randrange(4)
            if kind == 0:
                await self.world.replace(life, spread(self.random, 0.1, 20.0))
                continue
            if kind == 3:
                await self.world.renew(life, "wide")
                continue
            again = self.random.random() < 0.7
            if kind == 1:
                await self.world.close(life, "going home", again)
            else:
                await self.world.crash(life, self.random.random() < 0.3, again)
            if again:
                await asyncio.sleep(spread(self.random, 0.01, 3.0))
                await self.world.start(life.process)

    async def _credit_is_back(self) -> None:
        """Every process may again have as many unanswered calls to an actor as its credit allows: all at once, none has to wait."""
        count = min(self.world.credit, PROBES // 2)
        lives = self.world.current
        places = [(one, other, actor) for one in lives for other in lives for actor in ("worker", "wide")]
        self.random.shuffle(places)
        for caller, target, actor in places[: PROBES // count]:
            await self._probe(caller, target, actor, count)

    async def _probe(self, caller: Life, target: Life, actor: str, count: int) -> None:
        self.world.journal.gate.clear()
        client = Client(self.world, caller, self.random)
        ref = caller.system.ref(target.addresses[actor], Worker).with_deadline(QUIET)
        operations = [client.begin("hold", target, actor, QUIET) for _ in range(count)]
        waiting = asyncio.gather(*[client.watch([each], functools.partial(ref.call, Worker.hold, each.number)) for each in operations])
        await asyncio.sleep(1.0)
        waits = [wait.what for wait in caller.system.waits.snapshot() if "hold" in wait.what]
        self.world.journal.gate.set()
        await waiting
        errors = sorted({repr(each.error) for each in operations if each.outcome != "result"})
        if errors or waits != ["Worker.hold"] * count:
            where = f"{count} calls {caller.node} > {actor}@{target.node} in a quiet network"
            self.world.journal.problems.append(f"{where}: {errors}, waits {sorted(set(waits))}")

    async def _all_leave(self) -> None:
        lives = self.world.living
        if not lives:
            return
        calls = []
        self.world.journal.gate.clear()
        for life in lives:
            client, target = Client(self.world, life, self.random), self.random.choice(lives)
            operation = client.begin("hold", target, "worker", 3600.0)
            ref = life.system.ref(target.addresses["worker"], Worker).with_deadline(3600.0)
            calls.append(asyncio.ensure_future(client.watch([operation], functools.partial(ref.call, Worker.hold, operation.number))))
        await asyncio.sleep(self.random.choice([0.0, 1.0]))
        start = asyncio.get_running_loop().time()
        self.random.shuffle(lives)
        await asyncio.gather(*[self.world.close(life, "the end") for life in lives])
        await asyncio.wait(calls, timeout=10.0)
        if (took := asyncio.get_running_loop().time() - start) > 1.0 or not all(call.done() for call in calls):
            self.world.journal.problems.append(f"after {took:.3f} s of closing, waiters: {[call.done() for call in calls]}")
        for life in self.world.lives:
            if life.system.waits.snapshot():
                self.world.journal.problems.append(f"{life.node} still waits: {life.system.waits.snapshot()}")


class _Errors(logging.Handler):
    """Collects what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"logged: {record.getMessage()} {record.exc_info[1] if record.exc_info else ''}")
