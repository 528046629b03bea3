"""Engines in processes of their own: started on the nodes of the ranks whose devices they have, and gathered into a fleet."""

import os
from collections.abc import Sequence

from asyncrl.config.placement import Placement
from asyncrl.config.schema import Config
from asyncrl.launch.cluster import RankAddresses, Spawner, Starter
from asyncrl.launch.models import device_of, engine_recipe
from asyncrl.launch.session import say
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.system import ActorSystem
from asyncrl.runtime.tasks import all_of
from asyncrl.weight_sync.broadcast import BroadcastSync
from asyncrl.weight_sync.group import StorePlace
from asyncrl.weight_sync.image import DTYPES
from asyncrl.workers.engine_process import EngineProcess
from asyncrl.workers.fleet import EngineFleet, Member
from asyncrl.workers.weights import WeightSender, Wire

ENGINE_RESTARTS = 3
"""How often an engine may die within a minute."""


async def start_engines(spawner: Spawner, config: Config, placement: Placement) -> list[ActorRef[EngineProcess]]:
    """Start every engine; returns when they have read their model. They have no weights of a version yet, so none generates.

    An engine that dies is started again, by the supervisor of its node.
    """

    def engine(number: int, rank: int) -> Starter[EngineProcess]:
        recipe, name = engine_recipe(config, device_of(config, rank % placement.ranks_per_node)), f"engine-{number}"
        return lambda: spawner.spawn(EngineProcess, recipe, name=name, process=name, restarts=ENGINE_RESTARTS)

    return await all_of([engine(number, rank) for number, rank in enumerate(placement.engines)])


def broadcast_sync(config: Config, device: str, keep: bool) -> BroadcastSync:
    """The trainer's side of the weight sync; ``keep``: whether this rank sends to an engine."""
    bucket = config.actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes << 20
    return BroadcastSync(bucket, dtype=DTYPES[engine_recipe(config, device).dtype], keep=keep)


async def start_sender(system: ActorSystem, config: Config, device: str, sync: BroadcastSync) -> ActorRef[WeightSender]:
    """What sends ``sync``'s versions to engines. They meet it at torchrun's store."""
    store = StorePlace(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    wire = Wire(store, "gloo" if device == "cpu" else "nccl", device)
    return await system.spawn(WeightSender, sync, wire, config.runtime.silence, name="weights")


async def gather_fleet(
    system: ActorSystem, config: Config, placement: Placement, engines: Sequence[ActorRef[EngineProcess]], ranks: Sequence[RankAddresses]
) -> ActorRef[EngineFleet]:
    """Each engine with the rank that sends to it, as one."""
    silence = config.runtime.silence
    members = []
    for number, engine in enumerate(engines):
        roles = ranks[placement.owner(number)].roles
        assert roles is not None
        assert roles.sender is not None
        members.append(Member(engine.watched(silence), system.ref(roles.sender, WeightSender).watched(silence)))
    return (await system.spawn(EngineFleet, members, say, name="fleet")).watched(silence)
