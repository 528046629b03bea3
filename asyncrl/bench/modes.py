"""``asyncrl bench modes``: how near each mode comes to the best possible schedule.

The shipped loop, flow, queue, agent, reward and rollout workers run an engine that sleeps and computes nothing: 16 prompts a step
with 4 sessions each, 32 slots, log-normal latencies with a mean of 100 ms and sigma 1, and a training window of 50 ms. 60 steps are
measured after 10, for each of 5 seeds; a figure is the mean of a step.

The reference knows the drawn latencies: the groups issued in the window keep 32 slots busy for sum(latency) / 32. ``sync`` and
``colocate_async`` add the training; ``separate_async`` does both at once, so the longer of the two counts.
"""

from dataclasses import dataclass

from asyncrl.bench.report import Report
from asyncrl.bench.rounds import Progress


@dataclass(frozen=True, slots=True)
class ModesWork:
    """How much is done."""

    prompts: int = 16
    sessions: int = 4
    slots: int = 32
    mean: float = 0.1
    sigma: float = 1.0
    training: float = 0.05
    warm: int = 10
    steps: int = 60
    seeds: int = 5


async def modes(progress: Progress, work: ModesWork | None = None) -> Report:
    """Every mode with every seed."""
    from asyncrl.bench.mode_runs import play_modes  # most of the other benchmarks do without torch

    return await play_modes(progress, work or ModesWork())
