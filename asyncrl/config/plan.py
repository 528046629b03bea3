"""The arithmetic of a step: what ``asyncrl plan`` prints. Pure: configuration and world size in, numbers out."""

import math
from collections.abc import Sequence

import msgspec

from asyncrl.config.estimators import GREEDY
from asyncrl.config.placement import Placement
from asyncrl.config.schema.root import Config

ROUNDING = 1e-9
"""How far below a whole number a product may lie that means it."""


class PlannedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the run."""

    name: str
    role: str
    node: int
    needs_torch: bool


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would do. Counts are of one step unless they say otherwise; one session gives one trajectory here, a greedy one none.

    ``padding_rows`` fill a mini-batch whose sessions all give one row; a failed session or one of several rows may ask for
    up to ``padding_rows_worst`` in each mini-batch. ``prompts_in_flight`` are the most that are neither trained nor dropped.
    ``tokens_worst`` counts every row at its two limits.
    """

    mode: str
    world_size: int
    trainer_ranks: int
    engines: int
    nodes: int
    prompts: int
    prompts_in_flight: int
    local_updates: int
    sessions: int
    trajectories: int
    optimizer_steps: int
    mini_batch_prompts: int
    mini_batch_rows: int
    rows_per_rank: int
    padding_rows: int
    padding_rows_worst: int
    micro_batch_rows: int
    micro_batches: int
    tokens_worst: int
    steps: int | None
    epochs: int
    greedy_sessions: int
    reference: bool
    critic: bool
    critic_steps: int
    processes: list[PlannedProcess]

    @property
    def _rollout_ranks(self) -> str:
        apart = self.world_size - self.trainer_ranks
        return f": {self.trainer_ranks} train, {apart} lend their device to an engine" if apart else ""

    @property
    def _local_updates(self) -> str:
        return f", in {self.local_updates} local updates" if self.local_updates > 1 else ""

    def render(self) -> str:
        """The plan as text for a terminal."""
        steps = f"{self.steps}" if self.steps is not None else f"by {self.epochs} epochs"
        numbers = [
            ("mode", self.mode),
            ("ranks", f"{self.world_size} on {self.nodes} node(s)" + self._rollout_ranks),
            ("steps", steps),
            ("prompts per step", f"{self.prompts}, at most {self.prompts_in_flight} in flight" + self._local_updates),
            ("sessions per prompt", f"{self.sessions}" + (f", and {self.greedy_sessions} greedy" if self.greedy_sessions else "")),
            ("trajectories per step", f"{self.trajectories}"),
            ("optimizer steps per step", f"{self.optimizer_steps}"),
            ("mini-batch", f"{self.mini_batch_prompts} prompts, {self.mini_batch_rows} rows, {self.rows_per_rank} on each rank"),
            ("padding rows per mini-batch", f"{self.padding_rows}, at most {self.padding_rows_worst}"),
            ("micro-batches", f"{self.micro_batches} of up to {self.micro_batch_rows} rows, per mini-batch and rank"),
            ("tokens per step, at most", f"{self.tokens_worst}"),
            ("reference model", "yes" if self.reference else "no"),
            ("critic", f"yes, {self.critic_steps} optimizer steps per step" if self.critic else "no"),
        ]
        places = [
            (process.name, process.role, f"node {process.node}", "torch" if process.needs_torch else "") for process in self.processes
        ]
        return "\n".join([*_table(numbers), "", *_table([("process", "role", "where", "needs"), *places])])


def rows_per_micro_batch(rows: int | None, dynamic: bool, token_budget: int, row_tokens: int) -> int:
    """Rows of one micro-batch of a rank.

    ``rows`` as configured, or, when it is null or ``dynamic``, as many rows of ``row_tokens`` as ``token_budget`` holds (at least 1).

    >>> rows_per_micro_batch(None, False, 16384, 1024)
    16
    """
    return rows if rows is not None and not dynamic else max(1, token_budget // row_tokens)


def most_in_flight(prompts: int, lookahead: float) -> int:
    """How many prompts may be neither trained nor dropped: those of a step and ``lookahead`` times as many, rounded down.

    >>> most_in_flight(32, 0.5)
    48
    """
    # 0.29 * 100 is 28.999999999999996, and means 29.
    return prompts + math.floor(lookahead * prompts + ROUNDING)


def batch_arithmetic(
    config: Config,
    world_size: int,
    nodes: int,
    prompts_in_data: int | None = None,
    *,
    lookahead: float | None = None,
    updates: int | None = None,
) -> Plan:
    """The plan of a run on ``world_size`` ranks. Without ``prompts_in_data`` a length given in epochs stays open.

    ``lookahead`` and ``updates`` are those of a schedule of the user's own; None: of ``trainer_mode``.
    """
    v1 = config.trainer.v1
    data, actor = config.data, config.actor_rollout_ref.actor
    sessions, prompts, mini = config.actor_rollout_ref.rollout.n, data.train_batch_size, actor.ppo_mini_batch_size
    row_tokens = data.max_prompt_length + data.max_response_length
    mini_rows = mini * sessions
    placement = Placement.of(config, world_size, nodes)
    trainers = len(placement.trainers)
    rank_rows = math.ceil(mini_rows / trainers)
    micro = rows_per_micro_batch(actor.ppo_micro_batch_size_per_gpu, actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu, row_tokens)
    micro = min(micro, rank_rows)
    return Plan(
        mode=v1.trainer_mode,
        world_size=world_size,
        trainer_ranks=trainers,
        engines=len(placement.engines) or trainers,
        nodes=nodes,
        prompts=prompts,
        prompts_in_flight=most_in_flight(prompts, v1.lookahead if lookahead is None else lookahead),
        local_updates=v1.updates if updates is None else updates,
        sessions=sessions,
        trajectories=prompts * sessions,
        optimizer_steps=prompts // mini * actor.ppo_epochs,
        mini_batch_prompts=mini,
        mini_batch_rows=mini_rows,
        rows_per_rank=rank_rows,
        padding_rows=-mini_rows % trainers,
        padding_rows_worst=trainers - 1,
        micro_batch_rows=micro,
        micro_batches=math.ceil(rank_rows / micro),
        tokens_worst=prompts * sessions * row_tokens,
        steps=_steps(config, prompts_in_data),
        epochs=config.trainer.total_epochs,
        greedy_sessions=int(config.algorithm.estimator in GREEDY),
        reference=config.need_reference,
        critic=config.need_critic,
        critic_steps=prompts // config.critic.mini_batch_size * config.critic.epochs if config.need_critic else 0,
        processes=_processes(config, placement, nodes),
    )


def _steps(config: Config, prompts_in_data: int | None) -> int | None:
    if config.trainer.total_training_steps is not None or prompts_in_data is None:
        return config.trainer.total_training_steps
    return prompts_in_data // config.data.train_batch_size * config.trainer.total_epochs


def _processes(config: Config, placement: Placement, nodes: int) -> list[PlannedProcess]:
    """Ranks as torchrun places them, engines on the node of their rank, one supervisor on each node, its other children spread
    over the nodes in turn."""
    apart = placement.engines
    present = {"policy": True, "reference": config.need_reference, "critic": config.need_critic, "rollout engine": not apart}
    model = ", ".join(role for role, there in present.items() if there)
    roles = {rank: f"controller, {model}" if rank == 0 else model for rank in placement.trainers}
    roles |= {rank: f"lends its device to engine-{number}" for number, rank in enumerate(apart)}
    ranks = [
        PlannedProcess(name=f"rank-{rank}", role=roles[rank], node=placement.node_of(rank), needs_torch=True) for rank in sorted(roles)
    ]
    ranks += [
        PlannedProcess(
            name=f"engine-{number}",
            role=f"rollout engine, weights from rank-{placement.owner(number)}",
            node=placement.node_of(rank),
            needs_torch=True,
        )
        for number, rank in enumerate(apart)
    ]
    supervisors = [PlannedProcess(name=f"supervisor-{node}", role="supervisor", node=node, needs_torch=False) for node in range(nodes)]
    counts = (
        ("shard", "queue shard", config.transfer_queue.shards),
        ("agent", "agent worker", config.actor_rollout_ref.rollout.agent.num_workers),
        ("reward", "reward worker", config.reward.num_workers),
    )
    children = [
        PlannedProcess(name=f"{name}-{index}", role=role, node=index % nodes, needs_torch=False)
        for name, role, count in counts
        for index in range(count)
    ]
    return ranks + supervisors + children


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
