"""A fault in the mathematics makes a whole step differ from the dense reference: the comparison sees it, not only a golden.

Each case is a run in this process under options that let every part of its formulas act: ratios beyond each clip, masks with zeros
inside, a group of almost no spread, a reference and a value that the step has moved away from. Without a fault it equals the dense
step; with one it must not.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from asyncrl.algorithms.aggregation import AGGREGATIONS
from asyncrl.algorithms.losses import POLICY_LOSSES
from asyncrl.quickstart.assets import ADD1
from tests.dense_critic import DenseCritic
from tests.processes import off_policy
from tests.processes.mutants import mutated
from tests.processes.mutations import SOON, faults
from tests.processes.off_policy import ACTOR, TWICE
from tests.processes.test_every_estimator import COMPONENTS, CRITIC, NO_REFERENCE, check_run, judged, run
from tests.processes.test_every_loss import BYPASS, CHANGES, FROM_THE_ENGINE, changed
from tests.processes.test_rollout_corrections import MIXED, given, settings as correction_settings
from tests.processes.test_worked_example import A, B

ALMOST = 2**-13
"""The spread of a group beside which the epsilon of a deviation counts; exact in float32."""
EPOCHS = 3
ALL = [list(range(7))]


def rows(greedy: bool = False, spread: float = ALMOST) -> list[Any]:
    """Two prompts: one whose first session is good and long, and one whose scores are almost the same."""
    first = [
        [judged(A, [7, 13], 1.0)],
        [judged(A, [8, 5, 13], 0.0)],
        [judged(A, [9, 9, 13], 9.0), judged([*A, 9], [2, 4, 13], 0.25, [1, 0, 1])],
    ]
    second = [[judged(B, [1, 5, 5, 13], 0.5, [1, 0, 0, 1])], [judged(B, [1, 3, 5], 0.5 + spread, [1, 1, 0])], [judged(B, [], 0.5)]]
    answers = ([judged(A, [7, 7, 13], 0.5) | {"greedy": True}], [judged(B, [2, 13], 0.25) | {"greedy": True}])
    return [[*group, *([answer] if greedy else [])] for group, answer in zip((first, second), answers, strict=True)]


Case = Callable[[Path], Awaitable[list[dict[str, Any]]]]


async def policy(folder: Path) -> list[dict[str, Any]]:
    """GRPO with clips that bind on each side, KL to the reference and entropy, over some epochs."""
    clips: dict[str, Any] = {"clip_low": 0.02, "clip_high": 0.03, "clip_c": 1.01}
    options = (
        f"{ACTOR}.clip_ratio_low=0.02",
        f"{ACTOR}.clip_ratio_high=0.03",
        f"{ACTOR}.clip_ratio_c=1.01",
        f"{ACTOR}.kl_loss_coef=0.2",
        f"{ACTOR}.entropy_coeff=0.1",
        f"{ACTOR}.ppo_epochs={EPOCHS}",
        "actor_rollout_ref.rollout.temperature=0.8",
    )
    records = await run(folder, [rows()], *options)
    terms: dict[str, Any] = {"kl_loss_coef": 0.2, "entropy_coeff": 0.1, "temperature": 0.8}
    check_run(folder, records, **clips, **terms, mini_batches=ALL * EPOCHS)
    return records


async def critic(folder: Path) -> list[dict[str, Any]]:
    """GAE, and a critic whose clip binds."""
    options = (
        "algorithm.adv_estimator=gae",
        "algorithm.gamma=0.9",
        "algorithm.lam=0.8",
        "critic.ppo_epochs=3",
        "critic.cliprange_value=0.02",
    )
    plain = [option for option in CRITIC if not option.startswith("critic.cliprange_value")]
    records = await run(folder, [rows()], *plain, *options, *NO_REFERENCE)
    dense = DenseCritic(ADD1 / "model", folder / "critic_0.safetensors")
    settings: dict[str, Any] = {"gamma": 0.9, "lam": 0.8, "cliprange_value": 0.02, "critic_mini_batches": ALL * 3, "mini_batches": ALL}
    check_run(folder, records, dense, adv_estimator="gae", kl_loss_coef=0.0, **settings)
    return records


async def penalised(folder: Path, name: str = "low_var_kl") -> list[dict[str, Any]]:
    """KL in the reward, which counts once the policy has moved."""
    options = ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.2", f"algorithm.kl_penalty={name}")
    records = await run(folder, [rows(spread=0.5)] * 2, *options, *NO_REFERENCE)
    check_run(folder, records, kl_in_reward=0.2, kl_penalty=name, kl_loss_coef=0.0)
    return records


async def estimated(name: str, folder: Path, *options: str, greedy: bool = False, **settings: Any) -> list[dict[str, Any]]:
    """One step under an estimator."""
    records = await run(folder, [rows(greedy)], f"algorithm.adv_estimator={name}", *options, *NO_REFERENCE)
    check_run(folder, records, adv_estimator=name, kl_loss_coef=0.0, **settings)
    return records


def under(name: str, *options: str, greedy: bool = False, **settings: Any) -> Case:
    return lambda folder: estimated(name, folder, *options, greedy=greedy, **settings)


def sampled() -> list[Any]:
    """Rows that another policy sampled, each token with a probability below 1."""
    groups = off_policy.scripted()
    for row in (row for group in groups for session in group for row in session):
        row["log_probs"] = [min(value, -0.01) * one for value, one in zip(row["log_probs"], row["response_mask"], strict=True)]
    return groups


def off_policy_case(*options: str, twice: bool = True, **settings: Any) -> Case:
    """One step over rows that another policy sampled, with two passes over two mini-batches or one over all rows."""

    async def case(folder: Path) -> list[dict[str, Any]]:
        records = await off_policy.run(folder, [sampled()], *options, *(TWICE if twice else ()))
        off_policy.check_run(folder, records, epochs=2 if twice else 1, **settings)
        return records

    return case


def loss_case(name: str) -> Case:
    """A policy loss with options that act."""
    options, settings = CHANGES.get(name, ({}, {}))
    bypass = name in FROM_THE_ENGINE
    given_options = (f"{ACTOR}.policy_loss.loss_mode={name}", *changed(options), *(BYPASS if bypass else ()))
    return off_policy_case(*given_options, loss_mode=name, bypass=bypass, **settings)


def far_case(name: str, **options: float) -> Case:
    """A policy loss with ratios to the policy that sampled."""
    meant = {"clip_ratio_low": "clip_low", "clip_ratio_high": "clip_high"}
    settings: dict[str, Any] = {meant.get(option, option.removeprefix("policy_loss.")): value for option, value in options.items()}
    return off_policy_case(f"{ACTOR}.policy_loss.loss_mode={name}", *changed(options), *BYPASS, bypass=True, loss_mode=name, **settings)


def kl_case(name: str) -> Case:
    """A KL estimator in the loss, over passes in which the policy leaves the reference."""
    options = (f"{ACTOR}.kl_loss_type={name}", f"{ACTOR}.kl_loss_coef=0.5")
    return off_policy_case(*options, kl_loss_type=name, kl_loss_coef=0.5)


def corrected_case(twice: bool = True, **part: Any) -> Case:
    """A rollout correction."""
    return off_policy_case(*given(part), twice=twice, **correction_settings(part))


CASES: dict[str, Case] = {
    "policy": policy,
    "critic": critic,
    "penalised": penalised,
    "rloo": under("rloo"),
    "without std": under("grpo", "algorithm.norm_adv_by_std_in_grpo=false", norm_by_std=False),
    "opo": under("opo"),
    "gpg": under("gpg"),
    "passk": under("grpo_passk"),
    "gdpo": under("gdpo", "algorithm.gdpo_reward_keys=[right,brief]", "algorithm.gdpo_reward_weights=[1.0,0.5]", components=COMPONENTS),
    "whitened": under("reinforce_plus_plus_baseline"),
    "returns": under("reinforce_plus_plus", "algorithm.gamma=0.9", gamma=0.9),
    "remax": under("remax", greedy=True),
    "columns": under("optimal_token_baseline"),
    "tools": under("tir_optimal_token_baseline"),
    **{f"loss {name}": loss_case(name) for name in POLICY_LOSSES},
    **{
        f"aggregation {mode}": off_policy_case(
            f"{ACTOR}.loss_agg_mode={mode}", f"{ACTOR}.loss_scale_factor=7.0", twice=False, loss_agg_mode=mode, loss_scale=7.0
        )
        for mode in AGGREGATIONS
    },
    "kl k2": kl_case("k2"),
    "kl k1+": kl_case("k1+"),
    "kl abs": lambda folder: penalised(folder, "abs"),  # where nothing has moved its gradient is the sign of a rounding
    "far dppo_tv": far_case("dppo_tv", clip_ratio_low=0.5, clip_ratio_high=0.5),
    "far dppo_kl": far_case("dppo_kl", clip_ratio_low=0.4, clip_ratio_high=0.4),
    "far grpo": far_case("grpo", **{"policy_loss.epsilon": 0.01, "policy_loss.epsilon_high": 0.02, "policy_loss.delta": 1.03}),
    "bypass": off_policy_case(
        *given(MIXED | {"loss_type": "reinforce", "bypass_mode": True}),
        f"{ACTOR}.policy_loss.loss_mode=bypass_mode",
        bypass=True,
        loss_mode="bypass_mode",
        loss_type="reinforce",
        **correction_settings(MIXED),
    ),
    "token weights": corrected_case(rollout_is="token", rollout_is_threshold=1.2, rollout_is_batch_normalize=True),
    "row weights": corrected_case(rollout_is="sequence", rollout_is_threshold="0.7_1.4"),
    "rejection": corrected_case(twice=False, rollout_rs="token_k1", rollout_rs_threshold="0.6_1.5"),
}
FAULTS = faults()
LATER = [pytest.param(name, marks=pytest.mark.faults) for name in FAULTS if name not in SOON]
EARLY_CASES = dict.fromkeys(FAULTS[name][0] for name in SOON)


@pytest.mark.parametrize("case", [case if case in EARLY_CASES else pytest.param(case, marks=pytest.mark.faults) for case in CASES])
async def test_without_a_fault_a_run_equals_the_dense_reference(case: str, tmp_path: Path) -> None:
    records = await CASES[case](tmp_path)
    numbers = records[-1]["numbers"]
    if case == "policy":
        for name in ("pg_clipfrac", "pg_clipfrac_lower", "kl_loss"):
            assert max(numbers[f"actor/by_update/{name}"]) > 1e-3, "what does not act cannot be seen"
    if case == "critic":
        assert max(numbers["critic/by_update/vf_clipfrac"]) > 0


@pytest.mark.parametrize("fault", [*SOON, *LATER])
async def test_a_fault_makes_a_step_differ_from_the_dense_reference(fault: str, tmp_path: Path) -> None:
    case, mutation = FAULTS[fault]
    with mutated(mutation), pytest.raises(AssertionError):
        await CASES[case](tmp_path)
