"""The actors of one rank: policy, reference, critic and rollout engine, on the device of the rank."""

from asyncrl.config.schema import Config
from asyncrl.launch.cluster import RoleAddresses
from asyncrl.launch.environment import Place
from asyncrl.launch.models import build_models, critic_settings, device_of, policy_settings, reference_micro
from asyncrl.runtime.system import ActorSystem
from asyncrl.training.device_thread import DeviceRunner
from asyncrl.weight_sync.in_place import InPlaceSync
from asyncrl.workers.critic import CriticWorker
from asyncrl.workers.policy import PolicyWorker
from asyncrl.workers.rank import Device
from asyncrl.workers.reference import ReferenceWorker
from asyncrl.workers.rollout import RolloutWorker


async def start_roles(system: ActorSystem, thread: DeviceRunner, config: Config, place: Place, total_steps: int) -> RoleAddresses:
    """Build the models of this rank and spawn the actors that hold them. Collective: every rank of the group does it."""
    models = await thread.run(build_models, config, device_of(config, place), total_steps)
    device = Device(thread, models.pad_token_id)
    rollout = await system.spawn(RolloutWorker, thread, models.rollout, name="rollout")
    sync = InPlaceSync(models.rollout, dtype=next(models.rollout.model.parameters()).dtype)
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
        rollout=rollout.address,
    )
