"""Runs of the three modes in which processes are killed: how they are chosen, started and checked."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from asyncrl.trainer.sampler import ENDED
from asyncrl.training.checkpoint import LATEST
from asyncrl.trajectory import TrajectoryKey
from tests.processes.drawn_engine import LONGEST, drawn_answer
from tests.processes.killer import Kill, Plan, Record
from tests.processes.launching import ROOT, torchrun
from tests.processes.live_run import live_run

PROMPTS, SESSIONS, STEPS = 4, 4, 10
"""Of a step, of a prompt, of a run."""
THRESHOLD, AHEAD = 3, 2
VALIDATED = 2
"""Steps from one validation to the next; a checkpoint is written after each step."""
LIMIT = 240.0
"""Seconds after which a run hangs. On two cores of its own it takes 20, most of them to start and to end."""
ACCURACY = "val-core/add1_train/acc/mean@1"
TESTS = ROOT / "tests" / "processes"
V1 = "trainer.v1"
OPTIONS = (
    f"data.train_batch_size={PROMPTS}",
    f"data.max_response_length={LONGEST}",
    f"actor_rollout_ref.rollout.n={SESSIONS}",
    f"actor_rollout_ref.rollout.custom_engine.path={TESTS / 'drawn_engine.py'}",
    "actor_rollout_ref.rollout.custom_engine.name=DrawnEngine",
    "actor_rollout_ref.rollout.agent.num_workers=2",
    "actor_rollout_ref.actor.use_kl_loss=false",
    "reward.num_workers=2",
    f"reward.custom_reward_function.path={TESTS / 'counting_reward.py'}",
    f"trainer.total_training_steps={STEPS}",
    f"trainer.test_freq={VALIDATED}",
    "trainer.save_freq=1",
    "trainer.max_actor_ckpt_to_keep=1",
    f"{V1}.sampler.max_off_policy_strategy=wait",
    f"{V1}.sampler.max_off_policy_threshold={THRESHOLD}",
)
MODES = ("colocate_async", "separate_async", "colocate_async", "separate_async", "sync")
"""In turn."""
CPU = ("agent-0", "agent-1", "reward-0", "reward-1", "shard-0", "shard-1")


@dataclass(frozen=True, slots=True)
class DeathRun:
    """One run to be made: its mode, the ranks that train, the engines apart from them, and the kills."""

    seed: int
    mode: str
    trainers: int
    engines: int
    kills: tuple[Kill, ...]

    @classmethod
    def drawn(cls, seed: int, kills: int) -> "DeathRun":
        """A run whose shape and kills are drawn from ``seed``; the modes take turns. Kills are one to three steps apart."""
        draw, mode = Random(seed), MODES[seed % len(MODES)]
        engines = draw.choice((1, 2)) if mode == "separate_async" else 0
        trainers = 1 if engines == 2 else draw.choice((1, 2))
        held = tuple(f"engine-{number}" for number in range(engines))
        # Engines are there in one mode only: in that one they are killed more often.
        kinds = [CPU[:2], CPU[2:4], CPU[4:], *([held] * 3 if held else [])]
        planned, step = [], 1
        for _ in range(kills):
            step += draw.randrange(1, 4)
            planned.append(Kill(draw.choice(draw.choice(kinds)), step, draw.randrange(6)))
        return cls(seed, mode, trainers, engines, tuple(planned))

    def options(self, folder: Path) -> tuple[str, ...]:
        """What follows the common options on the command line."""
        apart: list[str] = []
        if self.engines:
            apart += [f"{V1}.separate_async.parameter_sync_step={1 + self.seed // len(MODES) % 2}"]
            apart += [f"actor_rollout_ref.rollout.n_gpus_per_node={self.engines}"]
        # The async modes have a journal unasked; without one nothing is left of a shard.
        apart += ["transfer_queue.journal=interval"] if self.mode == "sync" else [f"{V1}.{self.mode}.num_warmup_batches={AHEAD}"]
        return (
            *OPTIONS,
            f"trainer.seed={self.seed}",
            f"trainer.n_gpus_per_node={self.trainers}",
            f"{V1}.trainer_mode={self.mode}",
            f"+reward.custom_reward_function.reward_kwargs.file={folder / 'judged.jsonl'}",
            *apart,
        )


@dataclass(frozen=True, slots=True)
class DeathReport:
    """A run that has ended and stood every check."""

    run: DeathRun
    record: Record
    seconds: float

    @property
    def uids(self) -> list[str]:
        """Every prompt that was issued."""
        return list(dict.fromkeys(uid for uid, _ in self.record.issues))

    def issued_lengths(self) -> list[int]:
        """Tokens of every session that was issued, as they were drawn."""
        return [len(drawn_answer(self.run.seed, uid, str(session))) for uid in self.uids for session in range(SESSIONS)]

    def trained_lengths(self) -> list[int]:
        """Tokens of every row that was trained."""
        return [len(answer) for _, _, answer in self.record.rows]

    def line(self) -> str:
        """One row of the table."""
        ledger = self.record.ledger
        assert ledger is not None
        kills = ", ".join(f"{kill.victim} at {kill.step} ({kill.running}/{kill.finished})" for kill in self.record.kills)
        reissued = sum(lease > 1 for _, lease in self.record.issues)
        counts = f"{len(ledger.order)} | {len(ledger.trained)} | {len(ledger.dropped)} | {reissued}"
        run = self.run
        return f"| {run.seed} | {run.mode} | {run.trainers}+{run.engines} | {kills} | {counts} | {self.seconds:.1f} |"


HEAD = (
    "| seed | mode | ranks+engines | killed at step (groups running/finished) | issued | trained | dropped | issued again | seconds |\n"
    "|---:|---|---|---|---:|---:|---:|---:|---:|"
)


def make_run(run: DeathRun, folder: Path) -> DeathReport:
    """Make the run and hold it to everything that must be true of it."""
    folder.mkdir(parents=True, exist_ok=True)
    plan, record = folder / "plan.json", folder / "record.json"
    plan.write_bytes(msgspec.json.encode(Plan(str(record), list(run.kills))))
    command = torchrun(run.trainers + run.engines, "tests.processes.killer", str(plan))
    with live_run(folder, *run.options(folder), command=command) as live:
        seconds = live.seconds_to_end(LIMIT)
        assert live.process.returncode == 0, live.output()
        live.check_nothing_left()
        report = DeathReport(run, msgspec.json.decode(record.read_bytes(), type=Record), seconds)
        assert [kill.victim for kill in report.record.kills] == [kill.victim for kill in run.kills], live.output()
        assert all(any(line.startswith(f"{kill.victim} (pid") for line in live.stdout) for kill in run.kills), live.output()
        assert live.metrics[-1]["training/prompts/trained"] == PROMPTS * STEPS
        check_validations(live.metrics)
        assert (live.run_folder / LATEST).read_text() == str(STEPS), live.output()
    check_fates(report)
    return report


def check_validations(metrics: Sequence[Mapping[str, Any]]) -> None:
    """Every session of every validation was counted, with the score of the scripted reward."""
    found = {record["step"]: record[ACCURACY] for record in metrics if ACCURACY in record}
    assert found == dict.fromkeys(range(VALIDATED, STEPS + 1, VALIDATED), 1.0)


def check_fates(report: DeathReport) -> None:
    """Every prompt was trained once, whole and as it was drawn, or dropped with a reason."""
    record, seed = report.record, report.run.seed
    ledger = record.ledger
    assert ledger is not None
    assert all(kill.running and kill.finished for kill in record.kills)
    assert report.uids == ledger.order
    assert Counter((uid, lease) for uid, lease in record.issues).most_common(1)[0][1] == 1
    # In the ledger, and in what the ranks were given: two witnesses that do not know each other.
    assert not ledger.in_flight
    assert sorted([*ledger.trained, *ledger.dropped]) == sorted(ledger.order)
    assert set(ledger.dropped.values()) <= {ENDED}
    assert Counter(ledger.trained.values()) == dict.fromkeys(range(1, STEPS + 1), PROMPTS)
    whole = [(ledger.trained[uid], f"{uid}_{session}_0") for uid in ledger.trained for session in range(SESSIONS)]
    assert sorted((step, key) for step, key, _ in record.rows) == sorted(whole)
    assert sorted(record.learned) == sorted(whole)
    for _, key, answer in record.rows:
        name = TrajectoryKey.parse(key)
        assert answer == drawn_answer(seed, name.uid, name.session), key


def pooled(reports: Iterable[DeathReport]) -> tuple[Sequence[int], Sequence[int]]:
    """Lengths as issued and as trained, of all runs together."""
    held = list(reports)
    issued = [length for report in held for length in report.issued_lengths()]
    return issued, [length for report in held for length in report.trained_lengths()]
