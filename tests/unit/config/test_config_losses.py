"""What the configuration says of policy losses and rollout correction is what their code declares and reads."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings, strategies as st

from asyncrl.algorithms.losses import POLICY_LOSSES
from asyncrl.algorithms.rollout_correction.options import IS_LEVELS, LOSS_TYPES, RS_CRITERIA, RolloutCorrectionOptions
from asyncrl.config.load import assembled, load_config, to_yaml
from asyncrl.config.losses import AGGREGATES, READS
from asyncrl.config.schema.actor import LossMode
from asyncrl.config.schema.correction import CRITERIA, BypassLoss, IsLevel, RolloutCorrection
from asyncrl.config.tree import Tree, merged
from asyncrl.errors import ConfigError

R, CORRECTION = "actor_rollout_ref", "algorithm.rollout_correction"
LOSS = f"{R}.actor.policy_loss"
PAIR: dict[str, Any] = {R: {"rollout": {"n": 2}}, "algorithm": {"adv_estimator": "grpo"}}


def test_the_names_are_those_of_the_losses_and_of_the_correction() -> None:
    assert get_args(LossMode) == tuple(POLICY_LOSSES)
    assert (get_args(IsLevel), get_args(BypassLoss), CRITERIA) == (IS_LEVELS, LOSS_TYPES, RS_CRITERIA)


def test_an_option_is_said_to_be_read_by_the_losses_that_have_it() -> None:
    having: dict[str, list[str]] = {}
    for name, kind in POLICY_LOSSES.items():
        for field in dataclasses.fields(kind.options):
            having.setdefault(field.name, []).append(name)
    assert having.pop("rollout_correction") == ["bypass_mode"]
    assert {name.rpartition(".")[2]: sorted(losses) for name, losses in READS.items()} == {
        name: sorted(losses) for name, losses in having.items()
    }


def test_the_losses_with_an_aggregation_of_their_own_are_said_to_have_it() -> None:
    assert {name: kind.loss_agg_mode for name, kind in POLICY_LOSSES.items() if kind.loss_agg_mode} == AGGREGATES


def actor(**options: Any) -> Tree:
    return merged(PAIR, {R: {"actor": options}})


@pytest.mark.parametrize("name", AGGREGATES)
def test_a_loss_that_ignores_the_aggregation_is_named_in_one_line(name: str) -> None:
    [said] = assembled(actor(policy_loss={"loss_mode": name}), "x").notices
    assert said == f"{LOSS}.loss_mode={name} is aggregated by {AGGREGATES[name]}: {R}.actor.loss_agg_mode=token-mean does not reach it"
    assert assembled(actor(policy_loss={"loss_mode": name}, loss_agg_mode=AGGREGATES[name]), "x").notices == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (actor(tau_pos=2.0), [f"{R}.actor.tau_pos has no effect on vanilla"]),
        (actor(clip_ratio=0.3, policy_loss={"loss_mode": "grpo"}), [f"{R}.actor.clip_ratio has no effect on grpo"]),
        (actor(policy_loss={"loss_mode": "gspo", "epsilon": 0.3}), [f"{LOSS}.epsilon has no effect on gspo"]),
        (actor(clip_ratio_c=5.0, policy_loss={"custom": {"path": "x.py"}}), []),
        (
            merged(PAIR, {"algorithm": {"rollout_correction": {"rollout_is_threshold": 3.0, "rollout_rs_threshold": 1.0}}}),
            [f"{CORRECTION}.{name}_threshold has no effect without {name}" for name in ("rollout_is", "rollout_rs")],
        ),
        (
            merged(PAIR, {"algorithm": {"rollout_correction": {"rollout_is_batch_normalize": True, "rejected_in_denominator": True}}}),
            [
                f"{CORRECTION}.rollout_is_batch_normalize has no effect without rollout_is",
                f"{CORRECTION}.rejected_in_denominator has no effect without rollout_rs",
            ],
        ),
        (
            actor(policy_loss={"rollout_correction": {"rollout_is": "token"}}),
            [f"{LOSS}.rollout_correction.rollout_is has no effect on vanilla"],
        ),
        (
            merged(
                actor(policy_loss={"loss_mode": "bypass_mode"}),
                {"algorithm": {"rollout_correction": {"bypass_mode": True, "rollout_is": "token"}}},
            ),
            ["rollout_is=token is only reported with loss_type=ppo_clip, whose ratio is the importance weight"],
        ),
    ],
)
def test_what_the_loss_in_use_does_not_read_is_named_at_the_start(given: Tree, said: list[str]) -> None:
    assert assembled(given, "x").notices == said


NUMBERS = st.sampled_from(["0.5", "2", "1.5", "1e-3", "0", "-1", "x", "", "inf", "nan"])
THRESHOLDS = st.lists(NUMBERS, min_size=1, max_size=3).map("_".join)
LISTS = st.lists(THRESHOLDS, min_size=1, max_size=3).map(",".join)


@settings(max_examples=300, deadline=None)
@given(
    bounds=THRESHOLDS.filter(bool),
    names=st.none() | st.lists(st.sampled_from([*RS_CRITERIA, "token_k4"]), min_size=1, max_size=3).map(",".join),
    thresholds=st.none() | LISTS.filter(bool),
)
def test_a_threshold_is_accepted_by_the_schema_if_and_only_if_the_correction_can_read_it(
    bounds: str, names: str | None, thresholds: str | None
) -> None:
    options: dict[str, Any] = {
        "rollout_is": "token",
        "rollout_is_threshold": bounds,
        "rollout_rs": names,
        "rollout_rs_threshold": thresholds,
    }

    def accepts(kind: Callable[..., object]) -> bool:
        try:
            kind(**options)
        except (ValueError, ConfigError):
            return False
        return True

    assert accepts(RolloutCorrection) == accepts(RolloutCorrectionOptions)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        (f"{CORRECTION}.rollout_is_threshold=0.5_5", "0.5_5"),
        (f"{CORRECTION}.rollout_is_threshold=0.5_5.0", "0.5_5.0"),
        (f"{CORRECTION}.rollout_is_threshold='0.5_5'", "0.5_5"),
        (f"{CORRECTION}.rollout_is_threshold=3", 3.0),
    ],
)
def test_a_band_is_not_read_as_a_number_with_a_separator(argument: str, value: object, tmp_path: Path) -> None:
    loaded = load_config(["config=quickstart", argument])
    assert loaded.config.algorithm.rollout_correction.rollout_is_threshold == value
    (tmp_path / "again.yaml").write_text(to_yaml(loaded.resolved))
    assert load_config([f"config={tmp_path / 'again.yaml'}"]).config == loaded.config


def test_a_comma_list_of_criteria_needs_no_quotes() -> None:
    options = [f"{CORRECTION}.rollout_rs=token_k1,seq_max_k2", f"{CORRECTION}.rollout_rs_threshold=0.5_2,1.5"]
    found = load_config(["config=quickstart", *options]).config.algorithm.rollout_correction
    assert (found.rollout_rs, found.rollout_rs_threshold) == ("token_k1,seq_max_k2", "0.5_2,1.5")


def test_the_loss_of_the_bypass_follows_the_algorithm_option_by_option() -> None:
    shared = {"bypass_mode": True, "rollout_is": "token", "rollout_rs": "token_k2", "rollout_rs_threshold": 0.5}
    tree = merged(
        actor(policy_loss={"loss_mode": "bypass_mode", "rollout_correction": {"rollout_is": "sequence", "loss_type": "reinforce"}}),
        {"algorithm": {"rollout_correction": shared}},
    )
    found = assembled(tree, "x").config.actor_rollout_ref.actor.policy_loss.rollout_correction
    assert (found.rollout_is, found.rollout_rs, found.rollout_rs_threshold, found.loss) == ("sequence", "token_k2", 0.5, "reinforce")
    assert (found.threshold, found.normalize, found.keeps_denominator) == ("2.0", False, False)
