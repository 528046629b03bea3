"""The actors of one rank that trains: policy, reference, critic, and its engine or what sends weights to engines elsewhere."""

from asyncrl.config.placement import Placement
from asyncrl.config.schema import Config
from asyncrl.launch.cluster import RoleAddresses
from asyncrl.launch.engines import broadcast_sync, start_sender
from asyncrl.launch.environment import Place
from asyncrl.launch.models import build_models, critic_settings, device_of, engine_recipe, policy_settings, reference_micro
from asyncrl.launch.schedule import open_schedule
from asyncrl.runtime.system import ActorSystem
from asyncrl.training.device_thread import DeviceRunner
from asyncrl.weight_sync.image import DTYPES
from asyncrl.weight_sync.in_place import InPlaceSync
from asyncrl.weight_sync.protocol import WeightSync
from asyncrl.workers.critic import CriticWorker
from asyncrl.workers.policy import PolicyWorker
from asyncrl.workers.rank import Device
from asyncrl.workers.reference import ReferenceWorker
from asyncrl.workers.rollout import RolloutWorker


async def start_roles(system: ActorSystem, thread: DeviceRunner, config: Config, place: Place, total_steps: int) -> RoleAddresses:
    """Build the models of this rank and spawn the actors that hold them. Collective: every rank that trains does it."""
    where = device_of(config, place.local_rank)
    # The learning rate moves with each local update.
    models = await thread.run(build_models, config, where, total_steps * open_schedule(config).updates)
    device = Device(thread, models.pad_token_id)
    rollout = sender = None
    sync: WeightSync
    if models.rollout is not None:
        rollout = await system.spawn(RolloutWorker, thread, models.rollout, name="rollout")
        sync = InPlaceSync(models.rollout, dtype=DTYPES[engine_recipe(config, where).dtype])
    else:
        owner = place.rank in Placement.of(config, place.world_size, place.nodes).owners
        sync = broadcast_sync(config, where, owner)
        sender = await start_sender(system, config, where, sync) if owner else None
    policy = await system.spawn(PolicyWorker, device, models.policy, sync, policy_settings(config), name="policy")
    reference = None
    if models.reference is not None:
        temperature, micro = config.actor_rollout_ref.rollout.temperature, reference_micro(config)
        reference = await system.spawn(ReferenceWorker, device, models.reference, temperature, micro, name="reference")
    critic = None
    if models.critic is not None:
        critic = await system.spawn(CriticWorker, device, models.critic, critic_settings(config), name="critic")
    return RoleAddresses(
        policy=policy.address,
        reference=None if reference is None else reference.address,
        critic=None if critic is None else critic.address,
        rollout=None if rollout is None else rollout.address,
        sender=None if sender is None else sender.address,
    )
