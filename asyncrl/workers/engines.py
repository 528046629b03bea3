"""The way of an agent process to the rollout engines: many sessions, few messages."""

import asyncio
import zlib
from collections.abc import Sequence

from asyncrl.errors import EngineUnavailable, RolloutError
from asyncrl.runtime.ref import ActorRef
from asyncrl.trajectory import GREEDY_SESSION, GenerateOutput, GenerateRequest
from asyncrl.workers.rollout import Answers, RolloutWorker


class EngineClient:
    """One engine as seen by one agent process.

    Requests made in the same turn of the loop travel in one message, and answers come in batches through one stream.
    """

    def __init__(self, name: str, engine: ActorRef[RolloutWorker]) -> None:
        self._name, self._engine = name, engine
        self._waiting: dict[str, asyncio.Future[GenerateOutput]] = {}
        self._unsent: list[GenerateRequest] = []
        self._asked = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> GenerateOutput:
        """Sample one answer. Raises RolloutError when the engine refuses the request or is gone."""
        answer: asyncio.Future[GenerateOutput] = asyncio.get_running_loop().create_future()
        self._waiting[request.request_id] = answer
        self._unsent.append(request)
        self._asked.set()
        try:
            return await answer
        finally:
            self._waiting.pop(request.request_id, None)

    async def send(self) -> None:
        """Send requests as they come.

        consumes: requests of ``generate``
        produces: ``submit`` calls
        waits for: a request
        unblocked by: ``generate``
        """
        while True:
            await self._asked.wait()
            self._asked.clear()
            requests, self._unsent = self._unsent, []
            await self._engine.call(RolloutWorker.submit, self._name, requests)

    async def follow(self) -> None:
        """Hand answers to those who wait.

        consumes: the engine's ``answers`` stream
        produces: results of ``generate``
        waits for: the next batch of answers
        unblocked by: the engine's pump
        """
        try:
            async for answers in self._engine.with_deadline(0.0).stream(RolloutWorker.answers, self._name):
                self._settle(answers)
        finally:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(EngineUnavailable(f"the answers of engine {self._engine.address.actor} ended"))

    def _settle(self, answers: Answers) -> None:
        for output in answers.outputs:
            waiting = self._waiting.get(output.request_id)
            if waiting is not None and not waiting.done():
                waiting.set_result(output)
        for refusal in answers.refused:
            waiting = self._waiting.get(refusal.request_id)
            if waiting is not None and not waiting.done():
                waiting.set_exception(RolloutError(refusal.reason))


class Lockstep:
    """Lets sessions ask the engines only when all of them are ready to ask.

    So what reaches an engine together depends on the sessions alone, not on how fast each of them is.
    """

    def __init__(self) -> None:
        self._active = 0
        self._arrived: list[asyncio.Future[None]] = []

    def enter(self, sessions: int) -> None:
        """So many sessions will ask, or leave."""
        self._active += sessions

    def leave(self, sessions: int = 1) -> None:
        """So many sessions will not ask any more."""
        self._active -= sessions
        self._release()

    async def turn(self) -> None:
        """Wait until every session that has not left waits here."""
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrived.append(arrival)
        self._release()
        await arrival

    def _release(self) -> None:
        self._arrived = [arrival for arrival in self._arrived if not arrival.done()]
        if len(self._arrived) == self._active:
            for arrival in self._arrived:
                arrival.set_result(None)
            self._arrived = []


class EngineRouter:
    """Spreads the sessions of a prompt evenly over the engines; all turns of one session go to one engine."""

    def __init__(self, clients: Sequence[EngineClient], lockstep: Lockstep | None) -> None:
        self.clients, self.lockstep = clients, lockstep

    async def generate(self, request: GenerateRequest) -> GenerateOutput:
        """Sample one answer on the engine of the request's session."""
        if self.lockstep is not None:
            await self.lockstep.turn()
        number = 0 if request.session == GREEDY_SESSION else int(request.session)
        return await self.clients[(zlib.crc32(request.uid.encode()) + number) % len(self.clients)].generate(request)
