"""The co-located rollout engine of one rank as an actor: requests in, answers out as they end."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator

import msgspec

from asyncrl.errors import RolloutError
from asyncrl.rollout.engine import RolloutEngine
from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.training.device_thread import DeviceRunner
from asyncrl.trajectory import GenerateOutput, GenerateRequest


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request that the engine can never serve, and why."""

    request_id: str
    reason: str


class Answers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ended since the last item of the stream."""

    outputs: list[GenerateOutput]
    refused: list[Refused]


class RolloutWorker(Actor):
    """Steps the engine while it has requests.

    A client opens ``answers`` once and then submits as often as it likes: one message takes many requests, one item
    brings many answers. All engine work runs on the rank's device thread, between the jobs of policy and reference.
    """

    concurrency = 0

    def __init__(self, thread: DeviceRunner, engine: RolloutEngine) -> None:
        self.thread, self.engine = thread, engine
        self._owners: dict[str, str] = {}
        self._ready: dict[str, Answers] = defaultdict(lambda: Answers([], []))
        self._answered: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._work = asyncio.Event()

    async def on_start(self) -> None:
        self.context.background(self._pump, name="engine pump")

    @endpoint
    async def submit(self, client: str, requests: list[GenerateRequest]) -> None:
        """Hand requests over; their answers come through ``answers(client)``, refusals too."""
        self._owners |= {request.request_id: client for request in requests}
        for refusal in await self.thread.run(self._take, requests):
            self._owners.pop(refusal.request_id, None)
            self._ready[client].refused.append(refusal)
            self._answered[client].set()
        self._work.set()

    @endpoint
    async def answers(self, client: str) -> AsyncIterator[Answers]:
        """What ends for this client, in batches, until the client leaves."""
        while True:
            await self._answered[client].wait()
            self._answered[client].clear()
            yield self._ready.pop(client)

    @endpoint(roles=(CONTROLLER,))
    async def abort(self, request_ids: list[str] | None = None) -> int:
        """End these requests (None: all) with the tokens they have; return how many ended."""
        outputs = await self.thread.run(self.engine.abort, request_ids)
        self._deliver(outputs)
        return len(outputs)

    @endpoint(roles=(CONTROLLER,))
    async def sleep(self) -> None:
        """Free the engine's caches; its weights stay."""
        await self.thread.run(self.engine.sleep)

    @endpoint(roles=(CONTROLLER,))
    async def version(self) -> int:
        """The version of the weights in use."""
        return self.engine.version

    async def _pump(self) -> None:
        """Step the engine while it has requests.

        consumes: requests taken by ``submit``
        produces: answers for the clients' streams
        waits for: work
        unblocked by: ``submit``
        """
        while True:
            await self._work.wait()
            self._deliver(await self.thread.run(self.engine.step))
            if not self.engine.unfinished:
                self._work.clear()

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

    def _deliver(self, outputs: list[GenerateOutput]) -> None:
        for output in outputs:
            client = self._owners.pop(output.request_id)
            self._ready[client].outputs.append(output)
            self._answered[client].set()
