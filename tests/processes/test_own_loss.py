"""A policy loss of the user, by file and name."""

from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.load import load_config
from asyncrl.errors import CallFailed, ConfigError
from asyncrl.launch.preflight import preflight
from tests.processes.off_policy import ACTOR, TWICE, check_run, run, scripted
from tests.processes.test_inline import TINY

LOSS = f"{ACTOR}.policy_loss"
OWN = """
from dataclasses import dataclass

import torch

from asyncrl.algorithms.losses import PolicyLossKind, Prepared
from asyncrl.algorithms.losses.vanilla import vanilla
from asyncrl.algorithms.ranks import total

def quadratic(rows, options):
    \"\"\"dro under another name.\"\"\"
    losses = -(rows.advantages * rows.clean(rows.log_probs) - options["beta"] / 2 * rows.log_ratio() ** 2)
    return rows.weighted(losses, rows.token_means(ppo_kl=-rows.log_ratio()))

@dataclass(frozen=True)
class Options:
    clip_ratio_low: float
    clip_ratio_high: float
    clip_ratio_c: float
    top: float = 1.0

def choose(rows, options, *, draws, gather):
    \"\"\"Everything is kept; the mean advantage of all tokens is only counted.\"\"\"
    total(torch.stack([rows.advantages.sum(), rows.response_mask.sum()]), gather)
    return Prepared(rows.response_mask, rows.rollout_is_weights, rows.response_mask.bool(), {})

def clipped(rows, options):
    assert rows.selected is not None
    result = vanilla(rows, options)
    return result

kind = PolicyLossKind(clipped, Options, loss_agg_mode="token-sum", prepare=choose)

def one(rows):
    return rows

def bare(rows, options):
    return rows.log_probs

half = PolicyLossKind(clipped, Options, prepare=lambda rows, options: rows)
number = 3
"""


@pytest.fixture
def own(tmp_path: Path) -> Any:
    """Options for a name of the file."""
    (tmp_path / "own.py").write_text(OWN)
    return lambda name, *more: (f"{LOSS}.custom.path={tmp_path / 'own.py'}", f"{LOSS}.custom.name={name}", *more)


async def test_a_function_is_minimised_with_its_own_options(own: Any, tmp_path: Path) -> None:
    records = await run(tmp_path, [scripted()], *own("quadratic", f"{LOSS}.custom.options.beta=0.5"), *TWICE)
    check_run(tmp_path, records, epochs=2, loss_mode="dro", dro_beta=0.5)


async def test_a_kind_brings_options_aggregation_and_first_phase(own: Any, tmp_path: Path) -> None:
    records = await run(tmp_path, [scripted()], *own("kind"), *TWICE)
    check_run(tmp_path, records, epochs=2, pg_agg_mode="token-sum")


async def test_a_loss_that_returns_something_else_is_named(own: Any, tmp_path: Path) -> None:
    with pytest.raises((TypeError, CallFailed), match=r"bare.* returned a Tensor, expected a PolicyLoss"):
        await run(tmp_path, [scripted()], *own("bare"))


@pytest.mark.parametrize(
    ("name", "more", "key", "part"),
    [
        ("one", (), "custom.name", r"cannot be called as \(rows, options\)"),
        ("number", (), "custom.name", "not 3"),
        ("half", (), "custom.name", r"\(rows, options, draws=, gather=\)"),
        ("missing", (), "custom.name", "it has .*quadratic"),
        ("kind", (f"{LOSS}.custom.options.bottom=1",), "custom.options", "top"),
        (
            "bare",
            ("algorithm.rollout_correction.bypass_mode=true", "algorithm.rollout_correction.rollout_is=token"),
            "",
            "not .*own.py:bare",
        ),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(own: Any, name: str, more: tuple[str, ...], key: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part) as caught:
        preflight(load_config([*TINY, *own(name), *more]).config)
    assert caught.value.key == (f"{LOSS}.{key}" if key else "algorithm.rollout_correction.rollout_is")


def test_a_file_that_is_not_there_is_refused_by_its_option(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file") as caught:
        preflight(load_config([*TINY, f"{LOSS}.custom.path={tmp_path / 'none.py'}"]).config)
    assert caught.value.key == f"{LOSS}.custom.path"
