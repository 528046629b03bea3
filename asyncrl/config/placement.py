"""Which ranks train and which lend their device to a rollout engine. Pure: configuration and world size in, ranks out.

In ``separate_async`` torchrun starts trainer ranks and rollout ranks together. They share nodes, then the last ranks of each
node are its rollout ranks; or they have nodes of their own, then the last nodes are the rollout nodes. In the other modes
every rank trains, and holds an engine too.
"""

from collections.abc import Iterator

import msgspec

from asyncrl.config.schema.root import Config
from asyncrl.errors import ConfigError

SEPARATE = "separate_async"
TRAINER, ROLLOUT = "trainer", "actor_rollout_ref.rollout"
BACKEND = f"{ROLLOUT}.checkpoint_engine.backend"


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of a run by what they do, ascending. Engine k has the device of ``engines[k]``; () where engines live in ranks."""

    trainers: tuple[int, ...]
    engines: tuple[int, ...]
    ranks_per_node: int

    @classmethod
    def of(cls, config: Config, world_size: int, nodes: int) -> "Placement":
        """Place ranks as torchrun starts them. Raises ConfigError, with the counts, where trainers and engines do not add up."""
        here = world_size // nodes
        if not separate(config):
            return cls(trainers=tuple(range(world_size)), engines=(), ranks_per_node=here)
        if config.actor_rollout_ref.rollout.nnodes < nodes:
            first = _own_nodes(config, here, nodes) * here
            return cls(trainers=tuple(range(first)), engines=tuple(range(first, world_size)), ranks_per_node=here)
        trainers = _shared_nodes(config, here, nodes)
        ranks = range(world_size)
        return cls(
            trainers=tuple(rank for rank in ranks if rank % here < trainers),
            engines=tuple(rank for rank in ranks if rank % here >= trainers),
            ranks_per_node=here,
        )

    def node_of(self, rank: int) -> int:
        """The node of a rank."""
        return rank // self.ranks_per_node

    def owner(self, engine: int) -> int:
        """The trainer rank that sends weights to an engine: in turn, of those on its node where there are any."""
        node = self.node_of(self.engines[engine])
        near = [rank for rank in self.trainers if self.node_of(rank) == node] or list(self.trainers)
        return near[engine % len(near)]

    @property
    def owners(self) -> tuple[int, ...]:
        """The trainer ranks that send weights to an engine."""
        return tuple(sorted({self.owner(engine) for engine in range(len(self.engines))}))


def separate(config: Config) -> bool:
    """Whether engines are processes of their own."""
    return config.trainer.v1.trainer_mode == SEPARATE


def check_ranks(config: Config, world_size: int, nodes: int) -> None:
    """Compare what is configured with what torchrun started. Raises ConfigError with both numbers where they differ."""
    trainer, here = config.trainer, world_size // nodes
    if separate(config):
        Placement.of(config, world_size, nodes)
        return
    if trainer.nnodes not in (None, nodes):
        raise ConfigError(f"{TRAINER}.nnodes", trainer.nnodes, f"torchrun started {nodes}; allowed: null, or the same number")
    if trainer.n_gpus_per_node not in (None, here):
        allowed = f"torchrun started {here} on each node; allowed: null, or the same number"
        raise ConfigError(f"{TRAINER}.n_gpus_per_node", trainer.n_gpus_per_node, allowed)


def _own_nodes(config: Config, here: int, nodes: int) -> int:
    """The nodes that train, when others roll out."""
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    if trainer.nnodes not in (None, nodes - rollout.nnodes):
        raise ConfigError(
            f"{TRAINER}.nnodes",
            trainer.nnodes,
            f"torchrun started {nodes} nodes, {ROLLOUT}.nnodes takes {rollout.nnodes}; allowed: null, or {nodes - rollout.nnodes}",
        )
    for key, given in ((f"{TRAINER}.n_gpus_per_node", trainer.n_gpus_per_node), (f"{ROLLOUT}.n_gpus_per_node", rollout.n_gpus_per_node)):
        if given not in (None, here):
            raise ConfigError(key, given, f"torchrun started {here} on each node; allowed: null, or the same number")
    return nodes - rollout.nnodes


def _shared_nodes(config: Config, here: int, nodes: int) -> int:
    """The trainer ranks of each node, when engines are on the same nodes."""
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    for key, given in ((f"{ROLLOUT}.nnodes", rollout.nnodes), (f"{TRAINER}.nnodes", trainer.nnodes)):
        if given not in (None, nodes):
            allowed = f"{nodes} (each node trains and rolls out), or fewer {ROLLOUT}.nnodes than nodes"
            raise ConfigError(key, given, f"torchrun started {nodes} node(s); allowed: {allowed}")
    trains, rolls = trainer.n_gpus_per_node, rollout.n_gpus_per_node
    if trains is None and rolls is None:
        allowed = f"allowed: 1 to {here - 1}, as torchrun started {here} on each node and trainer.n_gpus_per_node is null too"
        raise ConfigError(f"{ROLLOUT}.n_gpus_per_node", None, allowed)
    trains = here - (rolls or 0) if trains is None else trains
    rolls = here - trains if rolls is None else rolls
    if trains + rolls != here or trains < 1 or rolls < 1:
        raise ConfigError(
            f"{ROLLOUT}.n_gpus_per_node",
            rolls,
            f"with {TRAINER}.n_gpus_per_node={trains} that makes {trains + rolls} ranks on each node, torchrun started {here}; "
            "allowed: trainer and rollout ranks that add up to these, at least one of each",
        )
    return trains


def engine_checks(config: Config) -> Iterator[ConfigError]:
    """What separate engines need, and what engines in the ranks cannot have."""
    rollout = config.actor_rollout_ref.rollout
    mode, backend = f"trainer.v1.trainer_mode={config.trainer.v1.trainer_mode}", rollout.checkpoint_engine.backend
    if not separate(config):
        if backend not in (None, "naive"):
            yield ConfigError(BACKEND, backend, f"allowed with {mode}: null, or naive, as engines share the devices of the trainer")
        return
    if backend == "naive":
        yield ConfigError(BACKEND, backend, f"allowed with {mode}: null, or nccl, as weights travel to other processes")
    if rollout.nnodes < 1:
        yield ConfigError(f"{ROLLOUT}.nnodes", rollout.nnodes, f"allowed with {mode}: at least 1, the nodes with engines of their own")
    if config.debug is not None:
        yield ConfigError("debug", config.debug, f"allowed with {mode}: null, as its engines are processes of their own")


def engine_remarks(config: Config) -> list[str]:
    """How weights travel, where that is a choice."""
    if not separate(config):
        return []
    return [f"{BACKEND}=nccl: weights are broadcast to one engine after another, over NCCL between GPUs and over gloo between CPUs"]


def torchrun_shape(config: Config, ranks: int | None, devices: int) -> tuple[int, int]:
    """Nodes and ranks on each that a run of this configuration takes, before torchrun has started any.

    ``ranks`` on each node as given on the command line, or None; ``devices`` are those of this node, where nothing is configured.
    """
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    nodes, trains = trainer.nnodes or 1, trainer.n_gpus_per_node
    if not separate(config):
        return nodes, ranks or trains or devices
    rolls = rollout.n_gpus_per_node or trains
    if nodes != rollout.nnodes or (ranks is not None and ranks == trains == rolls):
        return nodes + rollout.nnodes, ranks or trains or rolls or devices
    if ranks is not None or (trains is None and rolls is None):
        return nodes, ranks or devices
    return nodes, (trains or 1) + (rolls or 1)
