"""Answers that new weights interrupt, and local updates that share weights, in whole runs: every row against plain torch."""

import functools
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from asyncrl.config.load import load_config
from asyncrl.launch.inline import open_session
from asyncrl.trajectory import TrajectoryKey
from tests.dense_reference import distributions
from tests.processes import noted_rows
from tests.processes.launching import ROOT, environment, torchrun
from tests.processes.noted_rows import read_rows
from tests.processes.test_worked_example import model

LENGTH = 24
"""Tokens of every answer."""
OPTIONS = (
    "config=quickstart",
    "actor_rollout_ref.rollout.ignore_eos=true",
    f"data.max_response_length={LENGTH}",
    "actor_rollout_ref.actor.optim.lr=0.003",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.use_kl_loss=false",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
)


class Weights:
    """Models by the names of their files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaded = functools.cache(self._load)

    def _load(self, name: str) -> Any:
        loaded = model()
        missing, unexpected = loaded.load_state_dict(load_file(self._folder / f"{name}.safetensors"), strict=False)
        assert not unexpected
        assert missing in ([], ["lm_head.weight"])
        loaded.tie_weights()
        return loaded.eval()

    @torch.no_grad()
    def vocabulary(self, name: str, row: dict[str, Any]) -> torch.Tensor:
        """Log-probs [r, V] at each token of an answer."""
        parts, _ = distributions(self._loaded(name), [{"prompt_ids": row["prompts"], "response_ids": row["responses"]}], 1.0)
        return parts[0]

    def log_probs(self, name: str, row: dict[str, Any]) -> torch.Tensor:
        """Log-probs [r] of the answer's own tokens."""
        return self.vocabulary(name, row).gather(-1, torch.tensor(row["responses"])[:, None])[:, 0]


def furthest(found: Iterable[float], wanted: torch.Tensor) -> float:
    return float((torch.tensor(list(found)) - wanted).abs().max())


def check_segments(rows: list[dict[str, Any]], weights: Weights) -> list[dict[str, Any]]:
    """Whole answers, each token of the version that it carries; returns those of several versions."""
    for row in rows:
        versions = torch.tensor(row["rollout_versions"])
        assert len(row["responses"]) == len(versions) == LENGTH, row["key"]
        assert row["rollout_versions"] == sorted(row["rollout_versions"]), row["key"]
        assert int(versions[-1]) <= row["step"] - 1
        for version in sorted(set(row["rollout_versions"])):
            mine = versions == version
            wanted = weights.log_probs(f"version_{version}", row)[mine]
            assert furthest(torch.tensor(row["rollout_log_probs"])[mine].tolist(), wanted) <= 1e-5, (row["key"], version)
    cut = [row for row in rows if len(set(row["rollout_versions"])) > 1]
    # The version before would have been noticed.
    last = [(row["rollout_log_probs"][-1], weights.log_probs(f"version_{row['rollout_versions'][0]}", row)[-1]) for row in cut]
    assert max(abs(found - float(old)) for found, old in last) > 1e-3
    return cut


async def test_an_answer_cut_by_new_weights_goes_on_token_by_token_with_each_versions_log_probs(tmp_path: Path) -> None:
    options = [
        *OPTIONS,
        "debug=inline",
        f"trainer.default_local_dir={tmp_path / 'run'}",
        "trainer.v1.trainer_mode=colocate_async",
        "trainer.total_training_steps=4",
        "algorithm.adv_estimator=remax",
        "data.train_batch_size=2",
        "actor_rollout_ref.rollout.n=2",
        # Fewer than the sessions of the groups in flight: not all of them begin together.
        "actor_rollout_ref.rollout.max_num_seqs=8",
    ]
    async with open_session(load_config(options)) as session:
        await noted_rows.run(tmp_path, session)
    rows, weights = read_rows(tmp_path), Weights(tmp_path)
    assert len(rows) == 4 * 2 * 3
    cut = check_segments(rows, weights)
    greedy = [row for row in rows if TrajectoryKey.parse(row["key"]).session == "g"]
    assert [row for row in cut if row in greedy]
    for row in greedy:
        likeliest = {version: weights.vocabulary(f"version_{version}", row).argmax(-1) for version in set(row["rollout_versions"])}
        assert row["responses"] == [int(likeliest[version][place]) for place, version in enumerate(row["rollout_versions"])]


@pytest.mark.timeout(180)
def test_an_engine_that_takes_weights_in_flight_and_two_local_updates_from_the_same_start(tmp_path: Path) -> None:
    options = [
        *OPTIONS,
        f"trainer.default_local_dir={tmp_path / 'run'}",
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.parameter_sync_step=2",
        "trainer.n_gpus_per_node=1",
        "trainer.total_training_steps=3",
        "data.train_batch_size=4",
        "actor_rollout_ref.rollout.n=4",
        # One group after another, and the second four slow enough that new weights find one of them under way.
        "actor_rollout_ref.rollout.max_num_seqs=4",
        f"actor_rollout_ref.rollout.custom_engine.path={ROOT / 'tests/processes/hesitant_engine.py'}",
        "actor_rollout_ref.rollout.custom_engine.name=HesitantEngine",
    ]
    command = torchrun(2, "tests.processes.noted_rows", str(tmp_path), *options)
    result = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=170)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    rows, weights = read_rows(tmp_path), Weights(tmp_path)
    assert len(rows) == 3 * 4 * 4
    assert check_segments(rows, weights)
    for update in (0, 1):
        apart = []
        for row in (row for row in rows if row["update"] == update):
            frozen, now = f"version_{row['step'] - 1}", f"now_{row['step']}_{update}"
            assert furthest(row["old_log_probs"], weights.log_probs(frozen, row)) <= 1e-5, row["key"]
            apart.append(furthest(row["old_log_probs"], weights.log_probs(now, row)))
        assert (max(apart) <= 1e-5) if update == 0 else (min(apart) > 1e-3)
