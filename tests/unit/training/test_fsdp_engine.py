"""The FSDP2 engine on one rank and on two, against the same step in plain torch."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from asyncrl.errors import ConfigError
from asyncrl.metrics import scalars
from asyncrl.training.fsdp import FSDPEngine
from asyncrl.training.model import ModelConfig
from asyncrl.training.optimizer import OptimizerConfig
from tests.unit.training.conftest import GroupResults
from tests.unit.training.engine_suite import CASES, GROUP_CASES, MICRO
from tests.unit.training.tiny_rows import plain_loss, plain_rows, plain_squares, uneven_rows

# Starting two processes that import torch takes most of a minute on a busy machine of two cores.
pytestmark = pytest.mark.timeout(150)

SHARES = ("actor/loss", "actor/pg_loss", "actor/kl_loss", "actor/entropy_loss")
TRAINED = [name for name in CASES if name.startswith("train-") and name != "train-adamw"]


def plain_steps(model: nn.Module, steps: int = 2) -> dict[str, float]:
    """SGD with the gradient clipped to 0.7, in place; the numbers of the first step."""
    numbers: dict[str, float] = {}
    for _ in range(steps):
        loss, metrics = plain_loss(model, uneven_rows())
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 0.7))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(0.5 * parameter.grad)
        numbers = numbers or scalars(metrics) | {"actor/grad_norm": norm}
    return numbers


def assert_weights(found: dict[str, Tensor], model: nn.Module) -> None:
    expected = dict(model.named_parameters())
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name].detach(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("case", TRAINED)
def test_one_rank_trains_as_plain_torch_however_the_rows_are_cut(one_rank: None, model_folder: Path, plain: nn.Module, case: str) -> None:
    weights, numbers = CASES[case](model_folder)
    expected = plain_steps(plain)
    for name in (*SHARES, "actor/grad_norm", "actor/entropy"):
        assert numbers[name] == pytest.approx(expected[name], abs=1e-5)
    assert expected["actor/grad_norm"] > 0.7
    assert_weights(weights, plain)


@pytest.mark.parametrize("case", [*(name for name in TRAINED if name in GROUP_CASES), "all-on-first-rank"])
def test_two_ranks_train_as_plain_torch_however_the_rows_are_cut(two_ranks: GroupResults, plain: nn.Module, case: str) -> None:
    expected = plain_steps(plain)
    for name in SHARES:
        found = sum(numbers[case].get(name, 0.0) for numbers in two_ranks.numbers)
        assert found == pytest.approx(expected[name], abs=1e-5)
    for numbers in two_ranks.numbers:
        assert numbers[case]["actor/grad_norm"] == pytest.approx(expected["actor/grad_norm"], abs=1e-5)
        assert numbers[case]["actor/lr"] == 0.5
    assert two_ranks.total(case, "training/optimizer_steps") == 1
    assert_weights(two_ranks.tensors(case), plain)


def test_adamw_on_two_ranks_is_adamw_on_one(one_rank: None, two_ranks: GroupResults, model_folder: Path) -> None:
    one, _ = CASES["train-adamw"](model_folder)
    for name, value in two_ranks.tensors("train-adamw").items():
        torch.testing.assert_close(value, one[name], atol=1e-4, rtol=0)


def assert_log_probs(found: dict[str, Tensor], model: nn.Module) -> None:
    with torch.no_grad():
        log_probs, entropy = plain_rows(model, uneven_rows())
        squares = plain_squares(model, uneven_rows())
        for parameter in model.parameters():
            parameter.mul_(0.5)
        halved, _ = plain_rows(model, uneven_rows())
    for name, expected in (("log_probs", log_probs), ("entropy", entropy), ("sum_pi_squared", squares), ("halved", halved)):
        torch.testing.assert_close(found[name], torch.cat(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("evaluate-")])
def test_log_probs_are_those_of_a_plain_forward(one_rank: None, model_folder: Path, plain: nn.Module, case: str) -> None:
    found, numbers = CASES[case](model_folder)
    micro = MICRO.get(case.removeprefix("evaluate-"), MICRO["three"])
    lengths = uneven_rows().jagged("prompts").lengths + uneven_rows().jagged("responses").lengths
    if case != "evaluate-frozen":
        assert numbers["marks"] == len(micro.cut(lengths.tolist()))
    assert_log_probs(found, plain)


@pytest.mark.parametrize("case", [name for name in GROUP_CASES if name.startswith("evaluate-")])
def test_log_probs_on_two_ranks_are_those_of_a_plain_forward(two_ranks: GroupResults, plain: nn.Module, case: str) -> None:
    assert_log_probs(two_ranks.tensors(case), plain)


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_on_all(two_ranks: GroupResults, one_rank: None, model_folder: Path) -> None:
    case = "skipped-non-finite"
    assert [numbers[case]["unchanged"] for numbers in two_ranks.numbers] == [1, 1]
    assert two_ranks.total(case, "training/skipped_steps/non_finite_gradient") == 1
    assert two_ranks.total(case, "training/optimizer_steps") == 0
    assert all("actor/grad_norm" not in numbers[case] for numbers in two_ranks.numbers)
    again, _ = CASES[case](model_folder)
    for name, value in two_ranks.tensors(case).items():
        torch.testing.assert_close(value, again[name], atol=1e-4, rtol=0)


def test_a_mini_batch_without_a_trainable_token_is_skipped(two_ranks: GroupResults) -> None:
    case = "skipped-empty"
    assert two_ranks.total(case, "unchanged") == 2
    assert two_ranks.total(case, "training/skipped_steps/no_trainable_token") == 1
    assert two_ranks.total(case, "training/optimizer_steps") == 0


def test_rows_without_a_response_token_take_part(two_ranks: GroupResults) -> None:
    assert two_ranks.total("no-answer-tokens", "done") == 2


def test_a_state_leads_to_the_same_weights_bit_by_bit(two_ranks: GroupResults) -> None:
    assert two_ranks.total("restored", "same") == 2


def assert_anchored(numbers: dict[str, float]) -> None:
    assert (numbers["kept"], numbers["same"]) == (1, 1)
    assert numbers["moved"] > 1e-3


@pytest.mark.parametrize("case", ["anchored", "anchored-gathered"])
def test_anchored_weights_give_the_log_probs_of_their_moment_and_training_goes_on_as_without(
    one_rank: None, model_folder: Path, case: str
) -> None:
    found, numbers = CASES[case](model_folder)
    assert_anchored(numbers)
    expected, _ = CASES["train-adamw"](model_folder)
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def test_each_of_two_ranks_anchors_its_shards(two_ranks: GroupResults) -> None:
    for numbers in two_ranks.numbers:
        assert_anchored(numbers["anchored"])
    expected = two_ranks.tensors("train-adamw")
    assert all(torch.equal(value, expected[name]) for name, value in two_ranks.tensors("anchored").items())


def test_the_learning_rate_moves_once_per_scheduler_step(one_rank: None, model_folder: Path) -> None:
    optimizer = OptimizerConfig(lr=0.4, lr_warmup_steps=2, zero_indexed_step=False)
    engine = FSDPEngine(ModelConfig(path=str(model_folder)), optimizer)
    seen = [engine.lr]
    for _ in range(2):
        engine.scheduler_step()
        seen.append(engine.lr)
    assert seen == pytest.approx([0.2, 0.4, 0.4])


def test_a_folder_that_cannot_be_trusted_or_read_is_refused(one_rank: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        FSDPEngine(ModelConfig(path=str(tmp_path)), OptimizerConfig())
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoModelForCausalLM": "evil.Model"}}')
    with pytest.raises(ConfigError, match="auto_map"):
        FSDPEngine(ModelConfig(path=str(tmp_path)), OptimizerConfig())
    with pytest.raises(ValueError, match="frozen"):
        FSDPEngine(ModelConfig(path=str(tmp_path), trainable=False), OptimizerConfig())
