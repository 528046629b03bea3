"""A rollout engine as an actor: requests in, answers out as they end."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import msgspec

from asyncrl.errors import RolloutError
from asyncrl.rollout.engine import RolloutEngine
from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.runtime.waits import FOREVER
from asyncrl.training.device_thread import DeviceRunner
from asyncrl.trajectory import FirstToken, GenerateOutput, GenerateRequest
from asyncrl.workers.gate import EngineGate, Gate
from asyncrl.workers.usage import EngineUsage, UsageMeter


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request that the engine can never serve, and why."""

    request_id: str
    reason: str


class Answers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happened to a client's requests since the last item of the stream."""

    outputs: list[GenerateOutput]
    refused: list[Refused]
    started: list[FirstToken] = []
    """The requests with ``report_start`` that have drawn their first token."""
    marks: list[int] = []
    """What the client asked to be reminded of: everything that was there before has come."""


@dataclass(slots=True, eq=False)
class _Box:
    """What waits to be sent to one client."""

    filled: asyncio.Event = field(default_factory=asyncio.Event)
    outputs: list[GenerateOutput] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    started: list[FirstToken] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)

    def refuse(self, request_id: str, reason: str) -> None:
        """One request will not be served."""
        self.refused.append(Refused(request_id, reason))
        self.filled.set()

    def take(self) -> Answers:
        """All of it; the box is empty then."""
        answers = Answers(self.outputs, self.refused, self.started, self.marks)
        self.outputs, self.refused, self.started, self.marks = [], [], [], []
        self.filled.clear()
        return answers


@dataclass(frozen=True, slots=True)
class _Turn:
    """What one turn of the engine brought; ``idle`` when it can do no more without news."""

    outputs: list[GenerateOutput]
    refused: list[Refused]
    started: list[FirstToken]
    idle: bool
    weightless: bool


class RolloutWorker(Actor):
    """Steps the engine while it has requests and its gate is open.

    A client opens ``answers``, whose first item is empty, and then submits as often as it likes: one message takes many
    requests, one item brings many answers. When its stream ends, the client's requests end with it. All engine work runs
    on the device thread, between its other jobs. One task, the pump, does it; endpoints leave it what is to be done.
    """

    concurrency = 0

    def __init__(self, thread: DeviceRunner, engine: RolloutEngine) -> None:
        self.thread, self.engine = thread, engine
        self._gate = EngineGate(self.context.system.waits)
        self._owners: dict[str, str] = {}
        self._boxes: dict[str, _Box] = {}
        self._inbox: list[list[GenerateRequest]] = []
        self._unwanted: list[str] = []
        self._idle = True
        self._weightless = False
        self._usage = UsageMeter(self.context.host.clock, self.context.system.events)

    async def on_start(self) -> None:
        self.context.background(self._pump, name="engine pump")

    @endpoint
    async def submit(self, client: str, requests: list[GenerateRequest]) -> None:
        """Hand requests over; their answers come through ``answers(client)``, refusals too. It waits for nothing: while the gate
        is shut, or the device busy, requests are taken and wait.

        Raises RolloutError for a client whose stream is not open.
        """
        box = self._box_of(client)
        new: list[GenerateRequest] = []
        for request in requests:
            if request.request_id in self._owners:
                box.refuse(request.request_id, f"request {request.request_id}: a request of this id is in flight")
            else:
                self._owners[request.request_id] = client
                new.append(request)
        self._inbox.append(new)
        self._gate.changed.set()

    @endpoint
    async def withdraw(self, client: str, request_ids: list[str]) -> None:
        """End these requests of a client; they get no answer. One that has ended is passed over."""
        names = {request_id: None for request_id in request_ids if self._owners.get(request_id) == client}
        for request_id in names:
            del self._owners[request_id]
        waiting = {request.request_id for batch in self._inbox for request in batch}
        self._inbox = [[request for request in batch if request.request_id not in names] for batch in self._inbox]
        self._unwanted += [request_id for request_id in names if request_id not in waiting]
        self._gate.changed.set()

    @endpoint
    async def mark(self, client: str, number: int) -> None:
        """Put ``number`` into the client's stream, behind what is ready for it now.

        Raises RolloutError for a client whose stream is not open.
        """
        box = self._box_of(client)
        box.marks.append(number)
        box.filled.set()

    def _box_of(self, client: str) -> _Box:
        box = self._boxes.get(client)
        if box is None:
            raise RolloutError(f"{client} has no open stream of answers")
        return box

    @endpoint
    async def answers(self, client: str) -> AsyncIterator[Answers]:
        """What becomes of this client's requests, in batches, until the client leaves. The first one is empty: it says that
        the engine knows the client.

        Raises RolloutError for a client that has a stream already.
        """
        if client in self._boxes:
            raise RolloutError(f"{client} has an open stream of answers already")
        box = self._boxes[client] = _Box()
        try:
            yield box.take()
            while True:
                await box.filled.wait()
                yield box.take()
        finally:
            del self._boxes[client]
            # Nobody is left to hear of them, so nobody waits for the engine to end them.
            await self.withdraw(client, [name for name, owner in self._owners.items() if owner == client])

    @endpoint(roles=(CONTROLLER,))
    async def pause(self) -> int:
        """Shut the gate: no further step begins, and all that the engine holds ends with the tokens it has, which go to the
        clients with ``StopReason.ABORT``. Returns how many requests that were; 0 for an engine that is paused already.

        What is submitted from now on is taken, and waits for ``resume``.
        """
        return await self._gate.close()

    @endpoint(roles=(CONTROLLER,))
    async def resume(self) -> None:
        """Open the gate. Harmless when it is open."""
        await self._gate.open()

    def weights_came(self) -> None:
        """The engine was given weights by somebody in this process: requests that waited for the first ones go on, unless the
        gate is shut."""
        self._gate.changed.set()

    @endpoint(roles=(CONTROLLER,))
    async def sleep(self) -> None:
        """Free the engine's caches; its weights stay."""
        await self.thread.run(self.engine.sleep)

    @endpoint(roles=(CONTROLLER,))
    async def version(self) -> int:
        """The version of the weights in use."""
        return self.engine.version

    @endpoint(roles=(CONTROLLER,))
    async def take_usage(self) -> EngineUsage:
        """What the engine's time was spent on since the last call."""
        return self._usage.take()

    async def _pump(self) -> None:
        """Do what the endpoints left to be done, and step the engine while it has requests.

        consumes: requests taken by ``submit``, names left by ``withdraw``, orders of the gate
        produces: answers for the clients' streams
        waits for: something to do; the gate
        unblocked by: ``submit``, ``withdraw``, ``pause``, ``resume``, ``weights_came``, the end of a stream
        """
        while True:
            while not self._due:
                self._gate.changed.clear()
                await self._wait()
            if self._gate.state is Gate.PAUSING:
                outputs = await self.thread.run(self.engine.abort)
                self._idle = True
                self._deliver(outputs, [], [])
                self._usage.give_back(outputs)
                self._gate.closed(len(outputs))
                continue
            with self._usage.generating():
                while self._due and self._gate.state is Gate.RUNNING:
                    await self._step()

    async def _step(self) -> None:
        batches, unwanted = self._inbox, self._unwanted
        self._inbox, self._unwanted = [], []
        turn = await self.thread.run(self._turn, batches, unwanted)
        self._idle, self._weightless = turn.idle, turn.weightless
        self._deliver(turn.outputs, turn.refused, turn.started)

    @property
    def _due(self) -> bool:
        """Whether the pump has something to do now."""
        if self._gate.state is not Gate.RUNNING:
            return self._gate.state is Gate.PAUSING
        # Another look at the version: whoever loads tells this actor later, or opens the gate.
        ready = not self._weightless or self.engine.version >= 0
        return ready and bool(self._inbox or self._unwanted or not self._idle)

    async def _wait(self) -> None:
        """Wait for a change; by name where requests wait too."""
        waiting = len(self._owners)
        self._usage.waits(paused=self._gate.state is Gate.PAUSED)
        if not waiting:
            await self._gate.changed.wait()
            return
        what = "a resume" if self._gate.state is Gate.PAUSED else "weights"
        with self.context.system.waits.waiting("controller", f"{what} ({waiting} requests wait)", FOREVER):
            await self._gate.changed.wait()

    def _turn(self, batches: Sequence[list[GenerateRequest]], unwanted: list[str]) -> _Turn:
        """On the device: end what nobody wants, take what is new, step. An engine without weights takes and does not step."""
        if unwanted:
            self.engine.abort(unwanted)
        refused = [refusal for batch in batches for refusal in self._take(batch)]
        weightless = self.engine.version < 0
        outputs = [] if weightless else self.engine.step()
        return _Turn(outputs, refused, self.engine.started(), idle=not self.engine.unfinished, weightless=weightless)

    def _take(self, requests: list[GenerateRequest]) -> list[Refused]:
        refused: list[Refused] = []
        good: list[GenerateRequest] = []
        for request in requests:
            try:
                self.engine.check(request)
            except RolloutError as error:
                refused.append(Refused(request.request_id, str(error)))
            else:
                good.append(request)
        self.engine.submit(good)
        return refused

    def _deliver(self, outputs: list[GenerateOutput], refused: list[Refused], started: list[FirstToken]) -> None:
        """Put what happened into the boxes of those it is for. A client's request that was withdrawn meanwhile is for nobody."""
        for first in started:
            if box := self._boxes.get(self._owners.get(first.request_id, "")):
                box.started.append(first)
                box.filled.set()
        for output in outputs:
            if box := self._boxes.get(self._owners.pop(output.request_id, "")):
                box.outputs.append(output)
                box.filled.set()
        for refusal in refused:
            if box := self._boxes.get(self._owners.pop(refusal.request_id, "")):
                box.refuse(refusal.request_id, refusal.reason)
