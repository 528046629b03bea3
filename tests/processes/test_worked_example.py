"""The worked example of verl's V1 documentation, and its variants, through real ranks, sockets and queue.

Two prompts uA and uB, three sessions each, scripted rewards [1, 0, 0] and [0, 1, 1]. A dense reference step in plain torch
gets the same rows and must give the same advantages, metrics, gradient norm and weights, step after step.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from asyncrl.quickstart.assets import ADD1
from tests.dense_critic import DenseCritic
from tests.dense_reference import dense_step, response_tokens
from tests.processes.scenario import PROBE
from tests.processes.warm_ranks import run_scenario

SGD = (
    "actor_rollout_ref.actor.optim.optimizer=SGD",
    "actor_rollout_ref.actor.optim.lr=0.05",
    "actor_rollout_ref.actor.optim.weight_decay=0",
)
SMALL = ("data.train_batch_size=2", "actor_rollout_ref.rollout.n=3", "actor_rollout_ref.actor.ppo_mini_batch_size=2", *SGD)
SETTINGS: dict[str, Any] = {
    "clip_low": 0.2, "clip_high": 0.2, "clip_c": 3.0, "kl_loss_coef": 0.001, "entropy_coeff": 0.03, "temperature": 1.0,
    "lr": 0.05, "optimizer": "SGD", "weight_decay": 0.0, "clip_grad": 1.0,
}  # fmt: skip


def output(prompt: list[int], response: list[int], score: float, mask: list[int] | None = None) -> dict[str, Any]:
    return {"prompt_ids": prompt, "response_ids": response, "response_mask": mask or [1] * len(response), "score": score}


A, B = [3, 10, 4, 11], [8, 10, 5, 11]
UA = [[output(A, [7, 13], 1.0)], [output(A, [8, 13], 0.0)], [output(A, [1, 2, 13], 0.0)]]
UB = [[output(B, [1, 13], 0.0)], [output(B, [1, 3, 13], 1.0)], [output(B, [1, 3, 13], 1.0)]]
WORKED = [UA, UB]
TWO_OUTPUTS = [[*UA[:2], [output(A, [9, 9, 13], 0.0), output([*A, 9], [2, 13], 0.0)]], UB]
ONE_FAILED = [[UA[0], UA[1], []], UB]
INTERIOR_ZEROS = [[UA[0], UA[1], [output(A, [1, 5, 5, 13], 0.0, [1, 0, 0, 1])]], UB]


def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(ADD1 / "model", dtype=torch.float32)


def rows_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows as the queue held them after the rollout, in training order."""
    rows = []
    for key, tag in record["tags"].items():
        fields = record["rollout"][key]
        names = {"prompt_ids": "prompts", "response_ids": "responses", "response_mask": "response_mask"}
        row = {name: fields[field] for name, field in names.items()} | {name: tag[name] for name in ("score", "uid", "session", "index")}
        row |= {"key": key, "rollout_log_probs": fields["rollout_log_probs"]}
        rows.append(row | {"baseline": record["baselines"][tag["uid"]], "components": fields["reward_extra_info"]})
    return rows


def check_fields(record: dict[str, Any], expected: dict[str, Any]) -> None:
    """Hold what the stages left in the queue against what the dense step made; a field that no stage wrote is passed over."""
    stages = {
        "old_log_prob": {"old_log_probs": "old_log_probs", "sum_pi_squared": "sum_pi_squared"},
        "ref_log_prob": {"ref_log_prob": "ref_log_probs"},
        "values": {"values": "values"},
        "advantages": {"advantages": "advantages", "returns": "returns"},
    }
    for number, key in enumerate(record["tags"]):
        mask = record["rollout"][key]["response_mask"]
        for stage, names in stages.items():
            for field, name in names.items():
                if field in record.get(stage, {}).get(key, {}):
                    found, wanted = record[stage][key][field], expected[name][number]
                    # What is estimated holds nothing under the mask; what a model says of a tool's token is not compared.
                    # Nor are returns of what was rejected; its advantage must be 0.
                    trained = expected["kept"][number]["response_mask"] if field == "returns" else mask
                    shown = [[value * one for value, one in zip(values, trained, strict=True)] for values in (found, wanted)]
                    assert shown[0] == pytest.approx(shown[1], abs=1e-5), (key, field)


def check_step(
    record: dict[str, Any], weights: Path, trained: Any, reference: Any, critic: DenseCritic | None = None, **changes: Any
) -> dict[str, Any]:
    """Hold one recorded step against the dense step; ``trained`` and ``critic`` move on with it."""
    rows = rows_of(record)
    settings = SETTINGS | {"mini_batches": [list(range(len(rows)))], "step": record["numbers"]["training/global_step"]} | changes
    expected = dense_step(trained, reference, rows, settings, critic=critic)
    check_fields(record, expected)
    for key in record["tags"]:
        advantages, mask = record["advantages"][key]["advantages"], record["rollout"][key]["response_mask"]
        assert not any(advantage for advantage, one in zip(advantages, mask, strict=True) if not one)
    for name in expected["updates"][0]:
        found, wanted = record["numbers"].get(f"actor/by_update/{name}"), [update[name] for update in expected["updates"]]
        if found is not None or name != "kl_loss":
            assert found == pytest.approx(wanted, rel=1e-5, abs=1e-5), name
    for name in ("vf_loss", "vpred_mean", "vf_clipfrac", "grad_norm") if critic is not None else ():
        wanted = [update[name] for update in expected["critic_updates"]]
        assert record["numbers"][f"critic/by_update/{name}"] == pytest.approx(wanted, rel=1e-5, abs=1e-5), name
    check_weights(weights, trained)
    if critic is not None:
        check_weights(weights.with_name(weights.name.replace("weights", "critic")), critic)
    return expected


def check_weights(file: Path, model: Any) -> None:
    held = load_file(file)
    for name, tensor in model.named_parameters():
        torch.testing.assert_close(held[name], tensor.detach(), rtol=0, atol=1e-5, msg=name)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Four consecutive steps of one run: the example, and three variants of its rows."""
    folder = tmp_path_factory.mktemp("worked")
    return folder, run_scenario(folder, 2, [WORKED, TWO_OUTPUTS, ONE_FAILED, INTERIOR_ZEROS], *SMALL)


@pytest.mark.timeout(180)
def test_four_consecutive_steps_equal_the_dense_reference(steps: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, records = steps
    trained, reference = model(), model()
    for number, record in enumerate(records):
        check_step(record, folder / f"weights_{number + 1}.safetensors", trained, reference)


def test_the_worked_example_has_six_rows_and_verls_advantages(steps: tuple[Path, list[dict[str, Any]]]) -> None:
    record = steps[1][0]
    assert list(record["tags"]) == [f"s1e0p{prompt}_{session}_0" for prompt in range(2) for session in range(3)]
    first = [record["advantages"][key]["advantages"][0] for key in record["tags"]]
    assert first == pytest.approx([1.1547, -0.5774, -0.5774, -1.1547, 0.5774, 0.5774], abs=1e-4)


def test_each_stage_leaves_fields_of_the_declared_shapes(steps: tuple[Path, list[dict[str, Any]]]) -> None:
    for record in steps[1]:
        for key, tag in record["tags"].items():
            rollout = record["rollout"][key]
            assert len(rollout["prompts"]) == tag["prompt_len"]
            for name in ("responses", "response_mask", "rollout_log_probs", "rollout_versions", "rm_scores"):
                assert len(rollout[name]) == tag["response_len"], name
            assert rollout["rm_scores"] == [0.0] * (tag["response_len"] - 1) + [tag["score"]]
            assert len(record["old_log_prob"][key]["old_log_probs"]) == tag["response_len"]
            assert len(record["ref_log_prob"][key]["ref_log_prob"]) == tag["response_len"]
            assert len(record["advantages"][key]["returns"]) == tag["response_len"]


def test_two_outputs_of_a_session_are_seven_rows_and_one_vote(steps: tuple[Path, list[dict[str, Any]]]) -> None:
    record = steps[1][1]
    assert len(record["tags"]) == 7
    both = [record["advantages"][f"s1e0p2_2_{index}"]["advantages"] for index in range(2)]
    assert both[0] == pytest.approx([-0.5774] * 3, abs=1e-4)
    assert both[1] == pytest.approx([-0.5774] * 2, abs=1e-4)


def test_a_failed_session_leaves_five_rows_and_the_survivors_train(steps: tuple[Path, list[dict[str, Any]]]) -> None:
    record = steps[1][2]
    assert len(record["tags"]) == 5
    assert record["numbers"]["training/rollout_failure/failed_sessions"] == 1
    assert record["numbers"]["training/rows_trained"] == 5


def test_advantages_are_zero_where_the_mask_is(steps: tuple[Path, list[dict[str, Any]]]) -> None:
    masked = [row for row in steps[1][3]["rollout"] if 0 in steps[1][3]["rollout"][row]["response_mask"]]
    assert len(masked) == 1
    advantages = steps[1][3]["advantages"][masked[0]]["advantages"]
    assert advantages[1:3] == [0.0, 0.0]
    assert advantages[0] == pytest.approx(-0.5774, abs=1e-4)


def test_engines_change_at_the_sync_and_not_before(steps: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, records = steps
    old, new = model(), model()
    new.load_state_dict(load_file(folder / "weights_1.safetensors"), strict=False)
    for name, holder, version in (("before_sync", old, 0), ("after_sync", new, 1)):
        for answer in records[0][name]:
            row = {"prompt_ids": PROBE, "response_ids": answer["token_ids"]}
            with torch.no_grad():
                expected = response_tokens(holder, [row], 1.0)[0][0].tolist()
            assert answer["log_probs"] == pytest.approx(expected, abs=1e-5)
            assert set(answer["versions"]) == {version}
    before, after = records[0]["before_sync"][0], records[0]["after_sync"][0]
    assert abs(before["log_probs"][0] - after["log_probs"][0]) > 1e-4


def test_the_queue_is_empty_after_each_step(steps: tuple[Path, list[dict[str, Any]]]) -> None:
    for record in steps[1]:
        assert all(not any(partitions.values()) for partitions in record["rows_left"])


@pytest.mark.timeout(180)
def test_kl_in_the_reward_equals_the_dense_reference(tmp_path: Path) -> None:
    options = ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.2", "algorithm.kl_penalty=kl")
    records = run_scenario(tmp_path, 2, [WORKED, WORKED], *SMALL, *options)
    trained, reference = model(), model()
    for number, record in enumerate(records):
        check_step(record, tmp_path / f"weights_{number + 1}.safetensors", trained, reference, kl_in_reward=0.2, kl_penalty="kl")
    assert records[1]["numbers"]["critic/rewards/mean"] != pytest.approx(0.5, abs=1e-6)


@pytest.mark.timeout(180)
def test_two_mini_batches_and_two_epochs_equal_the_dense_reference(tmp_path: Path) -> None:
    options = ("actor_rollout_ref.actor.ppo_mini_batch_size=1", "actor_rollout_ref.actor.ppo_epochs=2")
    records = run_scenario(tmp_path, 2, [WORKED], *SMALL, *options)
    order = [[0, 1, 2], [3, 4, 5]] * 2
    expected = check_step(records[0], tmp_path / "weights_1.safetensors", model(), model(), mini_batches=order)
    assert len(expected["updates"]) == 4


@pytest.mark.timeout(180)
def test_the_real_agents_rewards_and_engines_fill_the_same_six_rows(tmp_path: Path) -> None:
    records = run_scenario(tmp_path, 2, [None], *SMALL, "reward.custom_reward_function.path=tests/processes/scripted_reward.py")
    record = records[0]
    by_prompt = [[tag["score"] for tag in record["tags"].values() if tag["uid"] == f"s1e0p{prompt}"] for prompt in range(2)]
    assert by_prompt == [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]
    for key in record["tags"]:
        rollout = record["rollout"][key]
        assert rollout["rollout_log_probs"] == pytest.approx(record["old_log_prob"][key]["old_log_probs"], abs=1e-5)
        assert set(rollout["rollout_versions"]) == {0}
    check_step(record, tmp_path / "weights_1.safetensors", model(), model())
