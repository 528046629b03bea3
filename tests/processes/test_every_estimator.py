"""Each name of ``algorithm.adv_estimator`` through configuration, sessions, queue and engines, against the dense step.

Two steps of one run: scripted rows with two outputs of a session, masks with zeros inside and at the end, and empty answers; then rows
that agents sampled and a reward function of the user judged.
"""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from asyncrl.algorithms.advantages import ESTIMATORS
from asyncrl.config.load import load_config
from asyncrl.config.schema.algorithm import AdvEstimator
from asyncrl.launch.inline import open_session
from asyncrl.quickstart.assets import ADD1
from tests.dense_critic import DenseCritic
from tests.processes.launching import ROOT
from tests.processes.scenario import run_scenario
from tests.processes.test_worked_example import SMALL, A, B, check_step, model, output

NAMES = get_args(AdvEstimator)
COMPONENTS = {"right": 1.0, "brief": 0.5}
RATE = 0.01
"""Small enough that rounding is not magnified by a step that overshoots."""
GENTLE = (*SMALL, f"actor_rollout_ref.actor.optim.lr={RATE}")
NO_REFERENCE = ("actor_rollout_ref.actor.use_kl_loss=false",)
OPTIONS: dict[str, tuple[str, ...]] = {
    "gae": ("algorithm.gamma=0.95", "algorithm.lam=0.9"),
    "reinforce_plus_plus": ("algorithm.gamma=0.9",),
    "gdpo": ("algorithm.gdpo_reward_keys=[right,brief]", "algorithm.gdpo_reward_weights=[1.0,0.5]"),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "gae": {"gamma": 0.95, "lam": 0.9},
    "reinforce_plus_plus": {"gamma": 0.9},
    "gdpo": {"components": COMPONENTS},
}
CRITIC = ("critic.optim.optimizer=SGD", "critic.optim.lr=0.05", "critic.optim.weight_decay=0", "critic.cliprange_value=0.2")


def judged(prompt: list[int], response: list[int], score: float, mask: list[int] | None = None) -> dict[str, Any]:
    return output(prompt, response, score, mask) | {"extra": {"right": score / 2, "brief": 1.0 / (1 + len(response))}}


def scripted(greedy: bool) -> list[Any]:
    """Two prompts; the last session of each is the greedy one, where there is one."""
    first = [[judged(A, [7, 13], 1.0)], [judged(A, [8, 5, 13], 0.0)], [judged(A, [9, 9, 13], 9.0), judged([*A, 9], [2, 13], 0.5)]]
    second = [[judged(B, [1, 5, 5, 13], 0.5, [1, 0, 0, 1])], [judged(B, [1, 3, 5], 1.0, [1, 1, 0])], [judged(B, [], 0.75)]]
    answers = ([judged(A, [7, 7, 13], 0.5) | {"greedy": True}], [judged(B, [2, 13], 0.25) | {"greedy": True}])
    return [[*group, *([answer] if greedy else [])] for group, answer in zip((first, second), answers, strict=True)]


async def run(folder: Path, steps: list[Any], *options: str) -> list[dict[str, Any]]:
    """The records of steps of an inline run; weights lie beside."""
    reward = f"reward.custom_reward_function.path={ROOT / 'tests/processes/component_reward.py'}"
    given = ["config=quickstart", "debug=inline", f"trainer.default_local_dir={folder / 'run'}", *GENTLE, reward, *options]
    async with open_session(load_config(given)) as session:
        await run_scenario({"out": str(folder), "steps": steps}, session)
    return [json.loads((folder / f"step_{number + 1}.json").read_text()) for number in range(len(steps))]


def check_run(folder: Path, records: list[dict[str, Any]], critic: DenseCritic | None = None, **settings: Any) -> None:
    trained, reference = model(), model()
    for number, record in enumerate(records):
        file = folder / f"weights_{number + 1}.safetensors"
        check_step(record, file, trained, reference, critic, **{"lr": RATE, "critic_lr": 0.05, "cliprange_value": 0.2, **settings})
        assert max(record["numbers"]["actor/by_update/grad_norm"]) > 1e-3


@pytest.mark.parametrize("name", NAMES)
async def test_a_step_of_each_estimator_has_the_loss_and_gradient_of_the_dense_reference(name: str, tmp_path: Path) -> None:
    needs = ESTIMATORS[name].needs
    options = (f"algorithm.adv_estimator={name}", *OPTIONS.get(name, ()), *NO_REFERENCE, *(CRITIC if needs.values else ()))
    records = await run(tmp_path, [scripted(needs.greedy_baseline), None], *options)
    critic = DenseCritic(ADD1 / "model", tmp_path / "critic_0.safetensors") if needs.values else None
    check_run(tmp_path, records, critic, adv_estimator=name, kl_loss_coef=0.0, **SETTINGS.get(name, {}))
    for record in records:
        assert len(record["tags"]) == len(record["advantages"])
        assert not any("_g_" in key for key in record["tags"])
        assert all(not any(partitions.values()) for partitions in record["rows_left"])
        assert record["numbers"]["training/rows_trained"] == len(record["tags"])
        assert all((baseline is not None) == needs.greedy_baseline for baseline in record["baselines"].values())
