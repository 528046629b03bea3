"""The header of a run: what runs where, and the arithmetic of a step."""

from collections.abc import Sequence

from asyncrl.config.plan import batch_arithmetic
from asyncrl.config.schema import Config
from asyncrl.launch.cluster import CpuProcesses
from asyncrl.launch.run_folder import RunFolder


def header_lines(
    config: Config, folder: RunFolder, processes: CpuProcesses, ranks: Sequence[int], supervisor: int
) -> list[tuple[str, str]]:
    """Name and text of each line."""
    plan = batch_arithmetic(config, len(ranks), 1)
    roles = "policy (FSDP2 shard), " + ("reference, " if config.need_reference else "") + "embedded rollout engine"
    lines = [(f"rank {rank}", f"pid {pid}: {roles}{', controller' if rank == 0 else ''}") for rank, pid in enumerate(ranks)]
    counts = f"{len(processes.shards)} queue shards, {len(processes.agents)} agent workers, {len(processes.rewards)} reward workers"
    step = (
        f"{plan.prompts} prompts x {plan.sessions} sessions = {plan.trajectories} rows, {plan.optimizer_steps} optimizer steps of "
        f"{plan.mini_batch_rows} rows, {plan.rows_per_rank} on each rank"
    )
    return [
        *lines,
        ("supervisor", f"pid {supervisor}: {counts}"),
        ("run", f"{config.trainer.project_name}: {config.trainer.experiment_name}, seed {config.trainer.seed}"),
        ("a step", step),
        ("run folder", str(folder.path)),
    ]
