"""``asyncrl bench step``: a whole GRPO step on two ranks of one thread each, against the same work in one plain process.

The work is that of a published TRL measurement: a 4-layer Qwen3-architecture model of width 128 over 14 characters, 32
prompts x 16 answers of at most 8 tokens, exact-match reward, KL 0.001 in the loss, one update a step, no validation.

step: seconds of a step in bypass mode, where the engine's log-probs serve as old ones, since the reference computes none.
step_with_old_log_probs: the same with the pass that computes them. Reference of both: transformers' ``generate``, a padded
forward and AdamW in one process with two threads (``asyncrl.bench.plain_step``).
step_vs_trl: with ``--peer-python``, the reference is TRL's GRPOTrainer in that interpreter.
"""

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from asyncrl.bench.foreign import run_python
from asyncrl.bench.report import Figure, Report
from asyncrl.bench.rounds import Progress
from asyncrl.observe.curve import read_metrics

WARM = 2
"""Steps that do not count."""
STAGES = ("gen", "old_log_prob", "ref", "adv", "update_actor", "update_weights", "clear")


@dataclass(frozen=True, slots=True)
class StepWork:
    """How much is done, and with what."""

    steps: int = 12
    rounds: int = 2
    ranks: int = 2
    peer_python: str | None = None


async def step(progress: Progress, work: StepWork | None = None) -> Report:
    """Interleaved rounds of ours with and without the pass, the plain process, and the peer where one is given."""
    work = work or StepWork()
    taken: dict[str, list[float]] = {"bypass": [], "pass": [], "plain": [], "peer": []}
    shares: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as name:
        folder = Path(name)
        await run_python(folder, [sys.executable, "-m", "asyncrl.bench.plain_step", "make", str(folder)], 1)
        for number in range(work.rounds):
            progress(f"step: round {number + 1} of {work.rounds}")
            taken["plain"].append(await _plain(folder, work))
            for kind in ("bypass", "pass"):
                seconds, found = await _ours(folder, work, kind, number)
                taken[kind].append(seconds)
                shares = found if kind == "pass" else shares
            if work.peer_python:
                taken["peer"].append(await _peer(folder, work))
    progress("step: share of the stages, with the pass: " + ", ".join(f"{name} {value:.0%}" for name, value in shares.items()) + "\n")
    plain = statistics.median(taken["plain"])
    figures = {
        "step": Figure.of(statistics.median(taken["bypass"]), "s", plain),
        "step_with_old_log_probs": Figure.of(statistics.median(taken["pass"]), "s", plain),
    }
    if taken["peer"]:
        figures["step_vs_trl"] = Figure.of(statistics.median(taken["bypass"]), "s", statistics.median(taken["peer"]))
    return Report("step", figures)


async def _ours(folder: Path, work: StepWork, kind: str, number: int) -> tuple[float, dict[str, float]]:
    """Median seconds of a step of the product as users start it, and the share of each stage."""
    run = folder / f"{kind}-{number}"
    options = [
        "config=grpo",
        f"data.train_files={folder / 'prompts.jsonl'}",
        "data.train_batch_size=32", "data.max_prompt_length=8", "data.max_response_length=8",
        f"actor_rollout_ref.model.path={folder / 'model'}",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        "actor_rollout_ref.actor.ppo_mini_batch_size=32", "actor_rollout_ref.actor.optim.lr=5e-4",
        "actor_rollout_ref.rollout.n=16", "actor_rollout_ref.rollout.agent.num_workers=1",
        f"algorithm.rollout_correction.bypass_mode={'true' if kind == 'bypass' else 'false'}",
        "reward.num_workers=1", "reward.custom_reward_function.path=pkg://asyncrl.quickstart/reward.py",
        f"trainer.total_training_steps={work.steps}", "trainer.val_before_train=false", "trainer.device=cpu",
        "trainer.logger=[file]", f"trainer.default_local_dir={run}",
    ]  # fmt: skip
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(work.ranks), "-m", "asyncrl.launch"]
    await run_python(folder, [*launch, *options], 1)
    records = read_metrics(run)[WARM:]
    shares = {name: statistics.median(record.get(f"timing_share/{name}", 0.0) for record in records) for name in STAGES}
    return statistics.median(record["timing_s/step"] for record in records), shares


async def _plain(folder: Path, work: StepWork) -> float:
    output = await run_python(folder, [sys.executable, "-m", "asyncrl.bench.plain_step", "run", str(folder), str(work.steps)], 2)
    return _median_seconds(output)


async def _peer(folder: Path, work: StepWork) -> float:
    assert work.peer_python is not None
    script = Path(__file__).with_name("peer_trl.py")
    # -P: the script's own folder has modules that are named as those of the standard library.
    output = await run_python(folder, [work.peer_python, "-P", str(script), str(folder), str(work.steps)], 2)
    return _median_seconds(output)


def _median_seconds(output: str) -> float:
    """The median of the seconds that a script prints as its last line, without the first steps."""
    seconds: list[float] = json.loads(output.splitlines()[-1])["seconds"]
    return statistics.median(seconds[WARM:])
