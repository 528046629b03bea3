"""The critic through whole inline runs: its cuts, its warm-up, its checkpoints, and what it is told of rewards."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from asyncrl.launch.inline import open_trainer
from asyncrl.quickstart.assets import ADD1
from tests.dense_critic import DenseCritic
from tests.processes.saved_tensors import saved_tensors
from tests.processes.test_every_estimator import CRITIC, NO_REFERENCE, check_run, run, scripted
from tests.processes.test_grpo_config import TEMPLATE, write_prompts
from tests.processes.test_inline import TINY
from tests.processes.test_worked_example import A, B, output

GAE = ("algorithm.adv_estimator=gae", *CRITIC)
SHAPES = {
    "one row": ("critic.ppo_micro_batch_size_per_gpu=1",),
    "three rows": ("critic.ppo_micro_batch_size_per_gpu=3", "critic.forward_micro_batch_size_per_gpu=2"),
    "tokens, packed": ("critic.ppo_max_token_len_per_gpu=16", "critic.model.use_remove_padding=true"),
    "one row, packed": ("critic.ppo_micro_batch_size_per_gpu=1", "critic.model.use_remove_padding=true"),
}
"""How the critic's rows may be cut and laid out. Its numbers and weights are those of all rows at once."""
SOON = ("three rows", "tokens, packed")
"""The cuts of the suite; the others run with ``make faults``."""
SETTINGS = {"adv_estimator": "gae", "kl_loss_coef": 0.0}


def dense(folder: Path) -> DenseCritic:
    return DenseCritic(ADD1 / "model", folder / "critic_0.safetensors")


@pytest.mark.parametrize("shape", [shape if shape in SOON else pytest.param(shape, marks=pytest.mark.faults) for shape in SHAPES])
async def test_every_cut_of_the_critics_rows_gives_the_dense_loss_gradient_and_weights(shape: str, tmp_path: Path) -> None:
    records = await run(tmp_path, [scripted(greedy=False)], *GAE, *NO_REFERENCE, *SHAPES[shape])
    check_run(tmp_path, records, dense(tmp_path), **SETTINGS)


async def test_mini_batches_and_epochs_of_the_critic_are_its_own_and_its_clip_binds_as_in_the_dense_step(tmp_path: Path) -> None:
    options = ("critic.ppo_mini_batch_size=1", "critic.ppo_epochs=2", "critic.cliprange_value=0.05")
    [record] = await run(tmp_path, [scripted(greedy=False)], *GAE, *NO_REFERENCE, *options)
    order = [[0, 1, 2, 3], [4, 5, 6]] * 2
    check_run(tmp_path, [record], dense(tmp_path), **SETTINGS | {"critic_mini_batches": order, "cliprange_value": 0.05})
    assert len(record["numbers"]["actor/by_update/loss"]) == 1
    clipped = record["numbers"]["critic/by_update/vf_clipfrac"]
    assert clipped[0] == 0.0 < max(clipped)


async def test_kl_in_the_reward_and_the_temperature_do_to_values_what_the_dense_step_says(tmp_path: Path) -> None:
    options = ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.2", "actor_rollout_ref.rollout.temperature=0.5")
    records = await run(tmp_path, [scripted(greedy=False)] * 2, *GAE, *NO_REFERENCE, *options)
    check_run(tmp_path, records, dense(tmp_path), **SETTINGS, kl_in_reward=0.2, kl_penalty="kl", temperature=0.5)


async def test_a_batch_without_a_trainable_token_is_left_out_by_both_and_the_next_step_is_as_usual(tmp_path: Path) -> None:
    masked = [[[output(A, [7, 13], 1.0, [0, 0])], [output(A, [], 0.5)]], [[output(B, [5, 5, 13], 0.0, [0, 0, 0])]]]
    records = await run(tmp_path, [masked, scripted(greedy=False)], *GAE, *NO_REFERENCE)
    empty, full = (record["numbers"] for record in records)
    for role in ("training", "training/critic"):
        assert (empty[f"{role}/skipped_steps/no_trainable_token"], empty[f"{role}/optimizer_steps"]) == (1, 0)
        assert (full[f"{role}/skipped_steps/no_trainable_token"], full[f"{role}/optimizer_steps"]) == (0, 1)
    assert (empty["training/weights_changed"], full["training/weights_changed"]) == (0.0, 1.0)
    assert "critic/vf_loss" not in empty
    assert json.loads(json.dumps(empty["critic/vf_explained_var"])) != empty["critic/vf_explained_var"]  # NaN: nothing backs it
    for name in ("weights", "critic"):
        before, after = (load_file(tmp_path / f"{name}_{step}.safetensors") for step in (0, 1))
        assert all(torch.equal(before[key], after[key]) for key in before)
    (tmp_path / "weights_1.safetensors").write_bytes((tmp_path / "weights_2.safetensors").read_bytes())
    (tmp_path / "critic_1.safetensors").write_bytes((tmp_path / "critic_2.safetensors").read_bytes())
    check_run(tmp_path, records[1:], dense(tmp_path), **SETTINGS)


async def test_a_critic_may_learn_beside_an_estimator_that_does_without(tmp_path: Path) -> None:
    records = await run(tmp_path, [scripted(greedy=False)], "algorithm.adv_estimator=rloo", "critic.enable=true", *CRITIC, *NO_REFERENCE)
    check_run(tmp_path, records, dense(tmp_path), **SETTINGS | {"adv_estimator": "rloo"})


async def test_the_policy_waits_for_the_warm_up_of_the_critic(tmp_path: Path) -> None:
    options = (*TINY, *GAE, "trainer.critic_warmup=2", f"trainer.default_local_dir={tmp_path}")
    async with open_trainer(options) as trainer:
        first, second = [(await trainer.train_step()).numbers for _ in range(2)]
    assert (first["training/weights_changed"], second["training/weights_changed"]) == (0.0, 1.0)
    assert first["training/critic/optimizer_steps"] == second["training/critic/optimizer_steps"] == 1
    assert "actor/loss" not in first
    assert "timing_s/update_actor" not in first
    assert second["training/optimizer_steps"] == 1
    assert first["training/rows_trained"] == second["training/rows_trained"] == 4


async def test_a_resumed_run_ends_bit_by_bit_as_the_one_that_was_not_interrupted(tmp_path: Path) -> None:
    options = [
        *TINY,
        "algorithm.adv_estimator=gae",
        "trainer.total_training_steps=4",
        "trainer.save_freq=2",
        "actor_rollout_ref.rollout.full_determinism=true",
        "critic.optim.lr=1e-3",
        "critic.optim.lr_warmup_steps=8",
        "critic.optim.zero_indexed_step=false",
        "trainer.critic_warmup=2",
    ]
    found: dict[str, list[dict[str, Any]]] = {"whole": [], "parts": []}
    for name, attempts in (("whole", [4]), ("parts", [2, 2])):
        for steps in attempts:
            async with open_trainer([*options, f"trainer.default_local_dir={tmp_path / name}"]) as trainer:
                found[name] += [(await trainer.train_step()).numbers for _ in range(steps)]
    same = ("training/weight_digest", "critic/by_update/vf_loss", "critic/by_update/grad_norm", "critic/lr", "critic/values/mean")
    for name in same:
        assert [step[name] for step in found["whole"]] == [step[name] for step in found["parts"]], name
    assert [step["critic/lr"] for step in found["whole"]] == pytest.approx([1.25e-4 * step for step in (1, 2, 3, 4)])
    whole, parts = (saved_tensors(tmp_path / name / "global_step_4" / "critic") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert {"exp_avg", "exp_avg_sq"} <= {name.rpartition(".")[2] for name in whole}
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    before = saved_tensors(tmp_path / "whole" / "global_step_2" / "critic")
    assert any(not torch.equal(whole[name], before[name]) for name in whole)


def ppo(folder: Path) -> tuple[str, ...]:
    """``config=ppo`` for twelve prompts, with a reward that is always 1.

    What is always so can be foreseen; of real rewards five steps of a dozen answers show noise.
    """
    (folder / "reward.py").write_text("def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return 1.0\n")
    return (
        "config=ppo",
        f"data.train_files={write_prompts(folder)}",
        "data.train_batch_size=12",
        "data.max_prompt_length=8",
        "data.max_response_length=4",
        f"actor_rollout_ref.model.path={ADD1 / 'model'}",
        f"actor_rollout_ref.model.custom_chat_template='{TEMPLATE}'",
        "actor_rollout_ref.actor.ppo_mini_batch_size=6",
        f"critic.model.path={ADD1 / 'model'}",
        "critic.optim.lr=1e-3",
        f"reward.custom_reward_function.path={folder / 'reward.py'}",
        "trainer.total_training_steps=5",
        f"trainer.default_local_dir={folder / 'run'}",
    )


def check_ppo(steps: Sequence[Mapping[str, Any]]) -> None:
    """Five steps in which the value loss fell, with verl's metrics of a critic."""
    losses = [float(step["critic/vf_loss"]) for step in steps]
    assert len(losses) == 5
    assert losses[-1] < 0.2 * losses[0], losses
    assert all(step["training/rows_trained"] == 12 and step["training/weights_changed"] == 1.0 for step in steps)
    names = ("vf_loss", "vf_clipfrac", "vpred_mean", "grad_norm", "lr", "loss", "vf_explained_var", "values/mean", "returns/max")
    assert all(f"critic/{name}" in step for name in names for step in steps)
    assert all(f"timing_s/{stage}" in step for stage in ("values", "update_critic", "update_actor") for step in steps)


async def test_config_ppo_trains_five_steps_and_its_value_loss_falls(tmp_path: Path) -> None:
    async with open_trainer(ppo(tmp_path)) as trainer:
        check_ppo([(await trainer.train_step()).numbers for _ in range(5)])
