"""A rollout engine in a process of its own, which takes new weights from a trainer rank while it generates."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import msgspec
from torch import Tensor, nn

from asyncrl.errors import ConfigError, WeightSyncError
from asyncrl.rewards.load import load_object
from asyncrl.rollout.engine import RolloutEngine
from asyncrl.rollout.weights import check_weights
from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.tasks import to_its_end
from asyncrl.training.device_thread import DeviceThread
from asyncrl.weight_sync.digest import digest
from asyncrl.weight_sync.group import BUCKET_SECONDS, JOIN_SECONDS, RECEIVER, Invitation, WeightGroup
from asyncrl.weight_sync.image import DTYPES, Manifest, staging
from asyncrl.workers.rollout import RolloutWorker

if TYPE_CHECKING:
    from asyncrl.rollout.embedded import EmbeddedEngine

ROLLOUT = "rollout"
"""The actor of the process that answers requests."""
SENDERS = (CONTROLLER, "rank")
CUSTOM = "actor_rollout_ref.rollout.custom_engine"
"""The section whose ``path`` and ``name`` an error names."""


class EngineRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An engine to be opened: the model's folder, where and in which format it runs, and its limits.

    ``custom``: file and name of what makes the user's own engine of this recipe; None = the embedded one.
    """

    folder: str
    device: str
    dtype: str
    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int
    full_determinism: bool = False
    trust_remote_code: bool = False
    custom: tuple[str, str] | None = None

    def open(self) -> RolloutEngine:
        """Make the engine. Blocking, on the device thread."""
        return self.embedded() if self.custom is None else self.maker(*self.custom)(self)

    @staticmethod
    def maker(path: str, name: str) -> "Callable[[EngineRecipe], RolloutEngine]":
        """What makes the user's engine. Raises ConfigError when there is no such thing, or it cannot be called."""
        found = load_object(path, name, CUSTOM)
        if not callable(found):
            raise ConfigError(f"{CUSTOM}.name", name, f"it is a {type(found).__name__}, expected a class or function that takes a recipe")
        return found  # type: ignore[no-any-return]

    def embedded(self) -> "EmbeddedEngine":
        """Read the model."""
        from asyncrl.rollout.embedded import EmbeddedEngine, EmbeddedOptions  # imports transformers

        limits = EmbeddedOptions(
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len,
            max_num_batched_tokens=self.max_num_batched_tokens,
            full_determinism=self.full_determinism,
        )
        return EmbeddedEngine.from_folder(
            self.folder, limits, digest=digest, device=self.device, dtype=self.dtype, trust_remote_code=self.trust_remote_code
        )


class Held(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an engine generates with: version -1 and no digest before the first load."""

    version: int
    digest: str


class EngineProcess(Actor):
    """The engine's keeper: opens it, hosts its ``RolloutWorker`` under the name ``rollout``, and takes weights over for it.

    A version travels in three calls, from one trainer rank: ``expect`` says what will come, ``join`` makes the two-member group
    where there is none yet, ``receive`` takes the buckets. They come into memory of their own on a thread of their own, while
    the engine goes on; once all of them are there and are what was announced, the engine loads the whole version between two
    steps. Whatever goes wrong before that leaves the engine as it was, and closes the group.
    """

    process_role = "engine"
    ready_within = 600.0
    group: ClassVar[type[WeightGroup]] = WeightGroup

    def __init__(self, recipe: EngineRecipe) -> None:
        self.recipe = recipe
        self._device, self._receiver = DeviceThread("device"), DeviceThread("weights")
        self._group: WeightGroup | None = None
        self._manifest: Manifest | None = None
        self._run: Tensor | None = None
        self._held = Held(-1, "")
        self.model: nn.Module | None = None
        """Whose names, types and shapes a version must have; None for an engine without one."""

    def open(self) -> RolloutEngine:
        """Make the engine, on the device thread. A process with another kind of engine is a subclass that overrides this."""
        if self.recipe.custom is not None:
            return self.recipe.open()
        engine = self.recipe.embedded()
        self.model = engine.model
        return engine

    async def on_start(self) -> None:
        self._engine = await self._device.run(self.open)
        await self.context.system.spawn(RolloutWorker, self._device, self._engine, name=ROLLOUT)

    async def on_stop(self) -> None:
        # The device thread is its worker's, who stops later.
        self._receiver.close()

    @endpoint(roles=SENDERS)
    async def held(self) -> Held:
        """The version in use."""
        return self._held

    @endpoint(roles=SENDERS)
    async def expect(self, manifest: Manifest) -> str:
        """Make ready for a version; return the name of the group that is there, "" for none.

        Raises WeightSyncError when its tensors are not those of the engine's model.
        """
        manifest.check()
        if self.model is not None:
            check_weights(self.model, [(piece.name, DTYPES[piece.dtype], piece.shape) for piece in manifest.pieces])
        self._run = await self._receiver.run(staging, manifest.size, self._run)
        self._manifest = manifest
        return "" if self._group is None else self._group.name

    @endpoint(roles=SENDERS)
    async def join(self, invitation: Invitation) -> None:
        """Meet the caller in a new group; the one before it is closed."""
        await self._leave()
        caller = self.context.caller
        with self.context.system.waits.waiting(caller, "its joining of the weight group", JOIN_SECONDS):
            try:
                self._group = await self._receiver.run(self.group, invitation, RECEIVER, caller, self.recipe.device)
            except BaseException:
                # The thread may still wait for a sender that will not come; the next one must not wait for it.
                self._receiver.close()
                self._receiver = DeviceThread("weights")
                raise

    @endpoint(roles=SENDERS)
    async def receive(self) -> str:
        """Take the buckets of the expected version and load it; return the digest of what the engine holds then.

        Raises TransferInterrupted when they do not come, WeightSyncError when they are not what was announced.
        """
        manifest, run, self._manifest = self._manifest, self._run, None
        if manifest is None or run is None or self._group is None:
            raise WeightSyncError(f"{self.context.name} expects no version, or has no group to take it from")
        try:
            await self._take(manifest, run, self._group)
            weights = manifest.tensors(run)
            came = await self._receiver.run(digest, weights)
            if came != manifest.digest:
                raise WeightSyncError(f"version {manifest.version} was announced as {manifest.digest} and came as {came}")
        except BaseException:
            self.context.background(self._leave, name="end of the weight group")
            raise
        # From here on a caller that leaves changes nothing: the version is loaded whole.
        return await to_its_end(lambda: self._load(manifest.version, weights))

    async def _take(self, manifest: Manifest, run: Tensor, group: WeightGroup) -> None:
        buckets, caller = manifest.buckets(), self.context.caller
        for number, bucket in enumerate(buckets, 1):
            what = f"bucket {number} of {len(buckets)} of version {manifest.version}"
            with self.context.system.waits.waiting(caller, what, BUCKET_SECONDS):
                await self._receiver.run(group.receive, run[bucket])
            self.context.progress()

    async def _load(self, version: int, weights: list[tuple[str, Tensor]]) -> str:
        self._held = Held(-1, "")
        held = await self._device.run(self._engine.load, version, weights)
        self._held = Held(version, held)
        self.context.system.instance(ROLLOUT, RolloutWorker).weights_came()
        return held

    async def _leave(self) -> None:
        """Close the group, after the bucket that is under way."""
        group, self._group = self._group, None
        if group is not None:
            group.interrupt()
            await self._receiver.run(group.close)


def rollout_of(engine: ActorAddress) -> ActorAddress:
    """Where an engine process answers requests."""
    return msgspec.structs.replace(engine, actor=ROLLOUT)
