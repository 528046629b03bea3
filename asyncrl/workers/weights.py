"""The trainer's end of the weight groups: sends the version in force to an engine process."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from asyncrl.errors import ActorDied, TransferInterrupted, Undeliverable, WeightSyncError
from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.tasks import all_of
from asyncrl.training.device_thread import DeviceThread
from asyncrl.weight_sync.broadcast import BroadcastSync
from asyncrl.weight_sync.group import BUCKET_SECONDS, JOIN_SECONDS, SENDER, Invitation, StorePlace, WeightGroup
from asyncrl.weight_sync.image import Image
from asyncrl.workers.engine_process import EngineProcess, Held


@dataclass(frozen=True, slots=True)
class Wire:
    """How this rank meets its engines: the store, what carries the bytes, and the device that they leave from."""

    store: StorePlace
    backend: Literal["gloo", "nccl"]
    device: str = "cpu"


class WeightSender(Actor):
    """Sends to one engine at a time, from a thread of its own: the device thread trains on meanwhile.

    The group with an engine is made when it is first needed, and again after anything went wrong in it.
    """

    group: ClassVar[type[WeightGroup]] = WeightGroup

    def __init__(self, sync: BroadcastSync, wire: Wire, silence: float) -> None:
        self._sync, self._wire, self._silence = sync, wire, silence
        self._thread = DeviceThread("weights")
        self._groups: dict[str, WeightGroup] = {}
        self._made = 0

    async def on_stop(self) -> None:
        self._thread.close()

    @endpoint(roles=(CONTROLLER,))
    async def send(self, engine: ActorAddress) -> Held:
        """Bring the version in force to an engine, which then generates with it. Returns what the engine holds.

        Raises TransferInterrupted when it did not arrive, so that the engine serves what it had; WeightSyncError when the engine
        cannot take it or holds something else.
        """
        image = self._sync.borrow()
        try:
            held = await self._deliver(self.context.system.ref(engine, EngineProcess).watched(self._silence), image)
        except (ActorDied, Undeliverable) as error:
            raise TransferInterrupted(engine.process, str(error)) from error
        finally:
            # A bucket that is under way reads the memory until it has left.
            self.context.background(self._settle, image, name=f"end of a transfer to {engine.process}")
        if held != image.manifest.digest:
            raise WeightSyncError(f"version {image.manifest.version} was sent as {image.manifest.digest}, {engine.process} holds {held}")
        return Held(image.manifest.version, held)

    async def _deliver(self, engine: ActorRef[EngineProcess], image: Image) -> str:
        peer = engine.address.process
        joined = await engine.call(EngineProcess.expect, image.manifest)
        group = self._groups.get(peer)
        if group is None or group.name != joined:
            group = await self._join(engine)
        try:
            _, held = await all_of(
                [functools.partial(self._send, group, peer, image), functools.partial(engine.call, EngineProcess.receive)]
            )
        except BaseException:
            del self._groups[peer]
            group.interrupt()
            self.context.background(self._on_thread, group.close, name=f"end of the group with {peer}")
            raise
        return held

    async def _join(self, engine: ActorRef[EngineProcess]) -> WeightGroup:
        """A new group with an engine; both members come at the same time."""
        system, peer = self.context.system, engine.address.process
        if (old := self._groups.pop(peer, None)) is not None:
            self.context.background(self._on_thread, old.close, name=f"end of the group with {peer}")
        self._made += 1
        # The store keeps the addresses of every group that was made: a later life must not find those of an earlier one.
        life = f"{system.identity.attempt}.{system.identity.generation}"
        name = f"weights/{life}/{peer}/{system.process}/{self._made}"
        invitation = Invitation(self._wire.store, name, self._wire.backend)

        async def here() -> None:
            with system.waits.waiting(peer, "its joining of the weight group", JOIN_SECONDS):
                self._groups[peer] = await self._thread.run(self.group, invitation, SENDER, peer, self._wire.device)

        async def there() -> None:
            await engine.call(EngineProcess.join, invitation)

        try:
            await all_of([here, there])
        except BaseException:
            # Who waits there for a member that will not come must not keep the next one waiting.
            self._thread.close()
            self._thread = DeviceThread("weights")
            raise
        return self._groups[peer]

    async def _send(self, group: WeightGroup, peer: str, image: Image) -> str:
        buckets = image.manifest.buckets()
        for number, bucket in enumerate(buckets, 1):
            what = f"taking bucket {number} of {len(buckets)} of version {image.manifest.version}"
            with self.context.system.waits.waiting(peer, what, BUCKET_SECONDS):
                await self._thread.run(group.send, image.run[bucket])
            self.context.progress()
        return ""

    async def _settle(self, image: Image) -> None:
        await self._on_thread(functools.partial(self._sync.give_back, image))

    async def _on_thread(self, function: Callable[[], None]) -> None:
        """Behind whatever the thread does now, or at once when it was closed: then it sends nothing any more."""
        try:
            await self._thread.run(function)
        except ActorDied:
            function()
