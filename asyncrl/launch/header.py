"""The header of a run: what runs where, and the arithmetic of a step."""

from collections.abc import Sequence

from asyncrl.config.placement import Placement
from asyncrl.config.plan import batch_arithmetic
from asyncrl.config.schema import Config
from asyncrl.launch.cluster import CpuProcesses
from asyncrl.launch.run_folder import RunFolder


def header_lines(
    config: Config, folder: RunFolder, processes: CpuProcesses, ranks: Sequence[int], *supervisors: int
) -> list[tuple[str, str]]:
    """Name and text of each line; ``supervisors`` are those of the nodes."""
    plan = batch_arithmetic(config, len(ranks), len(supervisors))
    known = {process.name: process.role for process in plan.processes}
    where = [f" on node {node}" if len(supervisors) > 1 else "" for node in range(len(supervisors))]
    homes = [where[rank * len(supervisors) // len(ranks)] for rank in range(len(ranks))]
    placement = Placement.of(config, len(ranks), len(supervisors))
    present = {
        "reference": config.need_reference,
        "critic (FSDP2 shard)": config.need_critic,
        "embedded rollout engine": not placement.engines,
    }
    roles = ", ".join(["policy (FSDP2 shard)", *(role for role, there in present.items() if there)])
    of_rank = {rank: f"{roles}{', controller' if rank == 0 else ''}" for rank in placement.trainers}
    of_rank |= {rank: known[f"rank-{rank}"] for rank in placement.engines}
    lines = [(f"rank {rank}", f"pid {pid}{homes[rank]}: {of_rank[rank]}") for rank, pid in enumerate(ranks)]
    lines += [(name, role) for name, role in known.items() if name.startswith("engine-")]
    counts = f"{len(processes.shards)} queue shards, {len(processes.agents)} agent workers, {len(processes.rewards)} reward workers"
    step = (
        f"{plan.prompts} prompts x {plan.sessions} sessions = {plan.trajectories} rows, {plan.optimizer_steps} optimizer steps of "
        f"{plan.mini_batch_rows} rows, {plan.rows_per_rank} on each rank"
    )
    return [
        *lines,
        ("supervisor", f"{', '.join(f'pid {pid}{home}' for pid, home in zip(supervisors, where, strict=True))}: {counts}"),
        ("run", f"{config.trainer.project_name}: {config.trainer.experiment_name}, seed {config.trainer.seed}"),
        ("a step", step),
        ("run folder", str(folder.path)),
    ]
