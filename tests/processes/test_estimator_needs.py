"""What an estimator asks for beyond rewards: where it comes from, and what happens where it does not come."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from asyncrl.errors import RunFailed
from asyncrl.launch.inline import open_trainer
from tests.processes.component_reward import compute_score
from tests.processes.test_every_estimator import NO_REFERENCE, check_run, run, scripted
from tests.processes.test_inline import TINY
from tests.processes.test_worked_example import model

REMAX = ("algorithm.adv_estimator=remax", *NO_REFERENCE)
LETTERS = "0123456789+="
"""The quickstart's tokens by id; 12 and 13 are padding and end."""

PARTS = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return {"score": 1.0, "right": 1.0} | ({"brief": 0.5} if extra_info["trajectory_key"].split("_")[1] == "1" else {})
"""


def greedy_score(prompt: list[int]) -> float:
    """The score of what plain transformers answers greedily with the start weights."""
    with torch.no_grad():
        ids = model().generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), do_sample=False, max_new_tokens=4)
    text = "".join(LETTERS[token] for token in ids[0, len(prompt) :].tolist() if token < len(LETTERS))
    return compute_score("", text, "", {})["score"]


async def test_the_baseline_of_remax_is_the_score_of_one_greedy_answer_which_is_no_row(tmp_path: Path) -> None:
    [record] = await run(tmp_path, [None], *REMAX)
    prompts = {tag["uid"]: record["rollout"][key]["prompts"] for key, tag in record["tags"].items()}
    assert record["baselines"] == {uid: greedy_score(prompt) for uid, prompt in prompts.items()}
    assert len(record["tags"]) == record["numbers"]["training/rows_trained"] == 6
    assert record["numbers"]["perf/total_num_tokens"] == sum(tag["seq_len"] for tag in record["tags"].values())


async def test_a_prompt_whose_greedy_session_failed_trains_nothing_and_is_counted(tmp_path: Path) -> None:
    first, second = scripted(greedy=True)
    [record] = await run(tmp_path, [[first[:-1], second]], *REMAX)
    assert record["numbers"]["training/rollout_failure/groups_without_baseline"] == 1
    assert record["baselines"] == {"s1e0p0": None, "s1e0p1": 0.25}
    trained = {key: any(row["advantages"]) for key, row in record["advantages"].items()}
    assert trained == {key: key.startswith("s1e0p1") and tag["response_len"] > 0 for key, tag in record["tags"].items()}
    # Its tokens stay in the denominator, as those of a group without spread do: 14 in all. Before the first step the ratio is 1.
    gains = sum(sum(row["advantages"]) for row in record["advantages"].values())
    assert record["numbers"]["actor/by_update/pg_loss"] == pytest.approx([-gains / 14], abs=1e-6)


async def test_a_row_without_a_part_of_its_reward_fails_and_names_part_and_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "reward.py").write_text(PARTS)
    options = (
        *TINY,
        "algorithm.adv_estimator=gdpo",
        "algorithm.gdpo_reward_keys=[right,brief]",
        f"reward.custom_reward_function.path={tmp_path / 'reward.py'}",
        f"trainer.default_local_dir={tmp_path / 'run'}",
    )
    async with open_trainer(options) as trainer:
        numbers = (await trainer.train_step()).numbers
    assert numbers["training/rollout_failure/failed_sessions"] == numbers["training/rollout_failure/undersized_groups"] == 2
    assert numbers["training/rows_trained"] == 2
    said = "reward: MissingComponent: the reward of row 's1e0p0_0_0' has no component 'brief' that is a finite number; it has score, right"
    assert said in capsys.readouterr().out


async def test_parts_that_no_reward_has_end_the_run_with_part_and_row(tmp_path: Path) -> None:
    keys = ("algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[kind]")
    with pytest.raises(RunFailed, match=r"step 1 has no row to train: .*'s1e0p0_0_0' has no component 'kind'"):
        async with open_trainer([*TINY, *keys, f"trainer.default_local_dir={tmp_path}"]) as trainer:
            await trainer.train_step()


async def test_components_may_name_the_score_itself(tmp_path: Path) -> None:
    options = ("algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[score,right]", *NO_REFERENCE)
    records = await run(tmp_path, [None], *options)
    for record in records:
        for row in record["rollout"].values():
            assert row["reward_components"][1] == row["reward_extra_info"]["right"]
        scores = [tag["score"] for tag in record["tags"].values()]
        assert [row["reward_components"][0] for row in record["rollout"].values()] == pytest.approx(scores)


async def test_the_noise_of_the_gradient_is_reported_where_its_terms_are_known(tmp_path: Path) -> None:
    [record] = await run(tmp_path, [scripted(greedy=False)], "algorithm.adv_estimator=optimal_token_baseline", *NO_REFERENCE)
    numbers: dict[str, Any] = record["numbers"]
    signal, power = numbers["variance_proxy/proxy1_signal_strength"], numbers["variance_proxy/proxy2_total_power"]
    assert signal == pytest.approx(numbers["actor/grad_norm"] ** 2)
    assert numbers["variance_proxy/proxy3_pure_noise"] == pytest.approx(max(0.0, power - signal) / (len(record["tags"]) - 1))
    rows = record["old_log_prob"]
    energy = [
        sum(
            m * (1 - 2 * 2.718281828459045**p + s)
            for m, p, s in zip(record["rollout"][key]["response_mask"], row["old_log_probs"], row["sum_pi_squared"], strict=True)
        )
        for key, row in rows.items()
    ]
    assert numbers["variance_proxy/expected_w"] == pytest.approx(sum(energy) / len(energy), abs=1e-5)
    assert json.dumps(numbers)


async def test_kl_in_the_reward_reaches_an_estimator_of_tokens(tmp_path: Path) -> None:
    options = ("algorithm.adv_estimator=reinforce_plus_plus", "algorithm.gamma=0.9", "algorithm.use_kl_in_reward=true")
    records = await run(tmp_path, [scripted(greedy=False)] * 2, *options, "algorithm.kl_ctrl.kl_coef=0.2", *NO_REFERENCE)
    settings: dict[str, Any] = {
        "adv_estimator": "reinforce_plus_plus",
        "gamma": 0.9,
        "kl_loss_coef": 0.0,
        "kl_in_reward": 0.2,
        "kl_penalty": "kl",
    }
    check_run(tmp_path, records, **settings)
