"""The weight of a KL in the reward that follows its target, over a resume."""

from pathlib import Path
from typing import Any

import pytest

from asyncrl.launch.inline import open_trainer
from tests.processes.test_inline import TINY

OPTIONS = (
    *TINY,
    "trainer.total_training_steps=4",
    "trainer.save_freq=2",
    "actor_rollout_ref.rollout.full_determinism=true",
    "algorithm.use_kl_in_reward=true",
    "actor_rollout_ref.actor.use_kl_loss=false",
    "algorithm.kl_ctrl.type=adaptive",
    "algorithm.kl_ctrl.kl_coef=0.5",
    "algorithm.kl_ctrl.target_kl=1e-9",
    "algorithm.kl_ctrl.horizon=10",
)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
async def test_a_resumed_run_goes_on_with_the_weight_of_its_checkpoint(tmp_path: Path) -> None:
    found: dict[str, list[dict[str, Any]]] = {"whole": [], "parts": []}
    for name, attempts in (("whole", [4]), ("parts", [2, 2])):
        for steps in attempts:
            async with open_trainer([*OPTIONS, f"trainer.default_local_dir={tmp_path / name}"]) as trainer:
                found[name] += [(await trainer.train_step()).numbers for _ in range(steps)]
    weights = [step["actor/reward_kl_penalty_coeff"] for step in found["whole"]]
    # Four rows a step; where the KL is far from its target, a step moves the weight by a fifth of 4 / 10.
    assert weights[0] == 0.5
    assert all(after == pytest.approx(before * (1.08 if kl > 1e-9 else 0.92)) for before, after, kl in zip(
        weights, weights[1:], [step["actor/reward_kl_penalty"] for step in found["whole"]], strict=False
    ))  # fmt: skip
    for name in ("actor/reward_kl_penalty_coeff", "actor/reward_kl_penalty", "training/weight_digest"):
        assert [step[name] for step in found["whole"]] == [step[name] for step in found["parts"]], name
