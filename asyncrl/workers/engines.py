"""The way of an agent process to the rollout engines: many sessions, few messages, over the engines' pauses and deaths."""

import asyncio
import itertools
import logging
import zlib
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from asyncrl.errors import AsyncRLError, EngineUnavailable, RolloutError, WireError
from asyncrl.rollout.continuation import Continuation
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.tasks import all_of, running
from asyncrl.runtime.waits import FOREVER, WaitRegistry
from asyncrl.trajectory import GREEDY_SESSION, GenerateOutput, GenerateRequest, PolicyVersion
from asyncrl.workers.lockstep import Lockstep
from asyncrl.workers.rollout import Answers, RolloutWorker

logger = logging.getLogger(__name__)

FRUITLESS = 3
"""How many streams in a row may end before the engine has said a word; the next one is opened when a session asks for it."""

OnStart = Callable[[PolicyVersion], None]
"""Told the version that drew the first token of a request with ``report_start``."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A request that the engine has not answered."""

    answer: asyncio.Future[GenerateOutput]
    started: OnStart | None


class EngineClient:
    """One engine as seen by one agent process.

    Requests made in the same turn of the loop travel in one message, and answers come in batches through one stream. A
    stream that ends takes its requests with it; the next one is opened at once, to the next life of the engine if need be.
    """

    def __init__(self, name: str, engine: ActorRef[RolloutWorker]) -> None:
        """``name``: of this life of the agent process, so that an engine tells it from an earlier one."""
        # What bounds a call is the engine's life, which the runtime watches, not the clock: a device may be busy for long.
        self._name, self._engine = name, engine.with_deadline(0.0)
        self.available = True
        """Whether requests are taken: until a stream ends, and again from the first word of the next one."""
        self.cause = ""
        """Why the last stream ended."""
        self.on_change: Callable[[], None] = lambda: None
        """Told when ``available`` has changed."""
        self._stream, self._open = "", False
        self._numbers = itertools.count(1)
        self._waiting: dict[str, _Waiting] = {}
        self._unsent: list[GenerateRequest] = []
        self._unwanted: list[str] = []
        self._marks: dict[int, asyncio.Future[None]] = {}
        self._unsent_marks: list[int] = []
        self._asked, self._missed = asyncio.Event(), asyncio.Event()

    def miss(self) -> None:
        """A session would use this engine, and it is not available: look for it again."""
        self._missed.set()

    async def generate(self, request: GenerateRequest, started: OnStart | None = None) -> GenerateOutput:
        """Sample one answer; it may come back aborted. A caller that leaves early ends the request at the engine.

        Raises RolloutError when the engine refuses the request, EngineUnavailable when it is lost.
        """
        if not self.available:
            raise EngineUnavailable(self.cause)
        # A name of its own for every try: one that nobody could end any more may still run under the name before.
        name = f"{request.request_id}@{self._name}.{next(self._numbers)}"
        waiting = self._waiting[name] = _Waiting(asyncio.get_running_loop().create_future(), started)
        self._unsent.append(msgspec.structs.replace(request, request_id=name))
        self._asked.set()
        try:
            return await waiting.answer
        except asyncio.CancelledError:
            self._withdraw(name)
            raise
        finally:
            self._waiting.pop(name, None)

    def _withdraw(self, name: str) -> None:
        kept = [request for request in self._unsent if request.request_id != name]
        if len(kept) == len(self._unsent):
            self._unwanted.append(name)
            self._asked.set()
        self._unsent = kept

    async def catch_up(self) -> None:
        """Return when all has come that the engine had given back before this call, or nothing of it can come any more."""
        if not self._open:
            return
        number = next(self._numbers)
        mark = self._marks[number] = asyncio.get_running_loop().create_future()
        self._unsent_marks.append(number)
        self._asked.set()
        try:
            with self._engine.caller.waits.waiting(self._engine.address.process, "the answers that were on their way", FOREVER):
                await mark
        finally:
            self._marks.pop(number, None)

    async def follow(self) -> None:
        """Keep a stream of answers open, over all lives of the engine.

        consumes: the engine's ``answers`` streams, one after the other; requests of ``generate``
        produces: results of ``generate``
        waits for: the next batch of answers; the next life of the engine; a session that misses it
        unblocked by: the engine's pump; the runtime's word on the engine's process; ``miss``
        """
        fruitless = 0
        for number in itertools.count(1):
            self._stream, greeted = f"{self._name}/{number}", False
            cause = "it ended the stream of answers"
            try:
                async with aclosing(self._engine.stream(RolloutWorker.answers, self._stream)) as stream:
                    greeted = await anext(stream, None) is not None
                    if greeted:
                        self._open = True
                        self._change(available=True)
                        async with running(self._send):
                            async for answers in stream:
                                self._settle(answers)
            except* AsyncRLError as errors:
                cause = str(errors.exceptions[0])
            finally:
                self._lose(f"engine {self._engine.address.actor}@{self._engine.address.process}: {cause}")
            if (task := asyncio.current_task()) is not None and task.cancelling():
                # A task group that fails while it is cancelled raises the failure alone.
                raise asyncio.CancelledError
            fruitless = 0 if greeted else fruitless + 1
            if fruitless >= FRUITLESS:
                if fruitless == FRUITLESS:
                    logger.error("%s; it is looked for again when a session misses it", self.cause)
                await self._missed.wait()
                self._missed.clear()

    async def _send(self) -> None:
        """Send requests as they come, and the names of those that nobody waits for any more.

        consumes: requests of ``generate``, names of those that were left
        produces: ``submit``, ``withdraw`` and ``mark`` calls
        waits for: a request or a name
        unblocked by: ``generate``, the cancelling of it, and ``catch_up``
        """
        while True:
            await self._asked.wait()
            self._asked.clear()
            requests, self._unsent = self._unsent, []
            unwanted, self._unwanted = self._unwanted, []
            if unwanted:
                await self._engine.call(RolloutWorker.withdraw, self._stream, unwanted)
            if requests:
                await self._submit(requests)
            marks, self._unsent_marks = self._unsent_marks, []
            for number in marks:
                await self._engine.call(RolloutWorker.mark, self._stream, number)

    async def _submit(self, requests: list[GenerateRequest]) -> None:
        try:
            await self._engine.call(RolloutWorker.submit, self._stream, requests)
        except WireError as error:
            # It would be so on any engine, and the stream is well.
            for request in requests:
                self._fail(request.request_id, RolloutError(str(error)))

    def _settle(self, answers: Answers) -> None:
        for first in answers.started:
            waiting = self._waiting.get(first.request_id)
            if waiting is not None and waiting.started is not None:
                waiting.started(first.version)
        for output in answers.outputs:
            waiting = self._waiting.get(output.request_id)
            if waiting is not None and not waiting.answer.done():
                waiting.answer.set_result(output)
        for refusal in answers.refused:
            self._fail(refusal.request_id, RolloutError(refusal.reason))
        # Last: who waits for a mark runs after those whose answers came before it.
        for number in answers.marks:
            self._reached(number)

    def _reached(self, number: int) -> None:
        mark = self._marks.get(number)
        if mark is not None and not mark.done():
            mark.set_result(None)

    def _fail(self, name: str, error: RolloutError) -> None:
        waiting = self._waiting.get(name)
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_exception(error)

    def _lose(self, cause: str) -> None:
        """The stream is over: whatever was asked for through it will not be answered."""
        self.cause = cause
        self._open = False
        self._unsent, self._unwanted, self._unsent_marks = [], [], []
        for name in list(self._waiting):
            self._fail(name, EngineUnavailable(cause))
        for number in list(self._marks):
            self._reached(number)
        self._change(available=False)

    def _change(self, *, available: bool) -> None:
        if self.available != available:
            self.available = available
            self.on_change()


class EngineRouter:
    """Spreads the sessions of a prompt evenly over the engines; all turns of one session go to one engine, while that lives.

    An answer goes on over pauses and deaths of engines: what it has is kept, and the rest asked for again.
    """

    def __init__(self, clients: Sequence[EngineClient], lockstep: Lockstep | None, waits: WaitRegistry, patience: float) -> None:
        """``patience``: seconds that a session waits for an engine when none lives."""
        self.clients, self.lockstep = clients, lockstep
        self._waits, self._patience = waits, patience
        self._changed = asyncio.Event()
        for client in clients:
            client.on_change = self._look_again

    async def generate(self, request: GenerateRequest) -> GenerateOutput:
        """Sample one whole answer. Raises RolloutError when it is refused, EngineUnavailable when no engine lives."""
        return await self.complete(Continuation(request))

    async def complete(
        self, answer: Continuation, started: OnStart | None = None, lost: Callable[[], None] = lambda: None
    ) -> GenerateOutput:
        """As ``generate``, of an answer that may have begun; ``started`` is told of each part's first token, and ``lost`` is
        called when a part will not come any more."""
        if self.lockstep is not None:
            await self.lockstep.turn()
        while (output := answer.output) is None:
            client = await self._living(answer.request)
            try:
                answer.add(await client.generate(answer.rest, started))
            except EngineUnavailable as error:
                logger.info("session %s_%s is moved: %s", answer.request.uid, answer.request.session, error)
                lost()
        return output

    async def catch_up(self) -> None:
        """Return when everything has come that the engines had given back before this call."""
        await all_of([client.catch_up for client in self.clients])

    async def _living(self, request: GenerateRequest) -> EngineClient:
        """The session's own engine if it lives, else one of those that do. Waits for one when there is none."""
        number = zlib.crc32(request.uid.encode()) + (0 if request.session == GREEDY_SESSION else int(request.session))
        own = self.clients[number % len(self.clients)]
        if own.available:
            return own
        own.miss()
        living = [client for client in self.clients if client.available]
        if not living:
            await self._wait_for_one(own)
            return await self._living(request)
        return living[number % len(living)]

    async def _wait_for_one(self, own: EngineClient) -> None:
        for client in self.clients:
            client.miss()
        try:
            async with asyncio.timeout(self._patience):
                with self._waits.waiting("engines", f"one that lives ({own.cause})", self._patience):
                    while not any(client.available for client in self.clients):
                        await self._changed.wait()
        except TimeoutError:
            raise EngineUnavailable(f"no engine lived for {self._patience:g} s; {own.cause}") from None

    def _look_again(self) -> None:
        # Those who wait now are woken; who comes later waits for the next change.
        self._changed.set()
        self._changed = asyncio.Event()
