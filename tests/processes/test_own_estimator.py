"""An advantage estimator of the user's, by file and name."""

from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.load import load_config
from asyncrl.errors import ConfigError
from asyncrl.launch.inline import open_trainer
from asyncrl.launch.preflight import preflight
from tests.processes.test_critic_runs import dense
from tests.processes.test_every_estimator import CRITIC, NO_REFERENCE, check_run, run, scripted
from tests.processes.test_inline import TINY

OWN = """
import torch
from asyncrl.algorithms.advantages import ESTIMATORS, Needs, OutcomeEstimator, TokenEstimator
from asyncrl.algorithms.advantages.gae import begin
from asyncrl.algorithms.masked import merged_moments, whitened

def half(rows, options):
    return torch.full_like(rows.scores, 0.5)

def finish(rows, partial, merged, options):
    return whitened(partial.advantages, rows.mask, merged)

again = TokenEstimator(begin, merged_moments, finish, Needs(tokens=True, values=True))
alone = OutcomeEstimator(half, Needs())
squared = TokenEstimator(begin, merged_moments, finish, Needs(tokens=True, sum_pi_squared=True))

def one(rows):
    return rows

number = 3
"""


@pytest.fixture
def own(tmp_path: Path) -> Any:
    """Options for a name of the file."""
    (tmp_path / "own.py").write_text(OWN)
    path = f"algorithm.custom_adv_estimator.path={tmp_path / 'own.py'}"
    return lambda name: (path, f"algorithm.custom_adv_estimator.name={name}")


async def test_a_function_trains_what_it_says(own: Any, tmp_path: Path) -> None:
    [record] = await run(tmp_path, [scripted(greedy=False)], *own("half"), *NO_REFERENCE)
    for key, row in record["advantages"].items():
        assert row["advantages"] == [0.5 * one for one in record["rollout"][key]["response_mask"]]


async def test_an_estimator_is_given_what_it_declares_to_need(own: Any, tmp_path: Path) -> None:
    records = await run(tmp_path, [scripted(greedy=False)], *own("again"), "critic.enable=true", *CRITIC, *NO_REFERENCE)
    check_run(tmp_path, records, dense(tmp_path), adv_estimator="gae", kl_loss_coef=0.0)


async def test_one_that_compares_nothing_does_with_one_session(own: Any, tmp_path: Path) -> None:
    options = [*TINY, *own("alone"), "actor_rollout_ref.rollout.n=1", f"trainer.default_local_dir={tmp_path / 'run'}"]
    async with open_trainer(options) as trainer:
        numbers = (await trainer.train_step()).numbers
    assert numbers["critic/advantages/mean"] == 0.5
    assert "training/rollout_failure/undersized_groups" not in numbers


@pytest.mark.parametrize(
    ("name", "options", "key", "part"),
    [
        ("one", (), "algorithm.custom_adv_estimator.name", r"cannot be called as \(rows, options\)"),
        ("number", (), "algorithm.custom_adv_estimator.name", "not 3"),
        ("missing", (), "algorithm.custom_adv_estimator.name", "it has .*half, finish, again"),
        ("half", ("actor_rollout_ref.rollout.n=1",), "actor_rollout_ref.rollout.n", "half compares the sessions"),
        ("again", (), "critic.enable", "again needs a critic's values"),
        ("squared", ("algorithm.rollout_correction.bypass_mode=true",), "algorithm.rollout_correction.bypass_mode", "the pass for"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(own: Any, name: str, options: tuple[str, ...], key: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part) as caught:
        preflight(load_config([*TINY, *own(name), *options]).config)
    assert caught.value.key == key


def test_a_file_that_is_not_there_is_refused_by_its_option(tmp_path: Path) -> None:
    options = [*TINY, f"algorithm.custom_adv_estimator.path={tmp_path / 'none.py'}"]
    with pytest.raises(ConfigError, match="no such file") as caught:
        preflight(load_config(options).config)
    assert caught.value.key == "algorithm.custom_adv_estimator.path"
