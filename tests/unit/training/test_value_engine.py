"""The critic's engine on one rank and on two, against the same steps in plain torch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, Qwen3ForTokenClassification

from asyncrl.errors import ConfigError
from asyncrl.training.fsdp_values import FSDPValueEngine
from asyncrl.training.model import ModelConfig
from asyncrl.training.optimizer import OptimizerConfig
from asyncrl.training.value_model import read_value_model
from tests.unit.training.conftest import GroupResults
from tests.unit.training.engine_suite import CASES, GROUP_CASES, MICRO
from tests.unit.training.tiny_rows import uneven_rows

pytestmark = pytest.mark.timeout(150)

CRITICS = [name for name in CASES if name.startswith("critic-")]


class PlainCritic(nn.Module):
    """A backbone and a head, evaluated one row at a time."""

    def __init__(self, folder: Path, head: dict[str, Tensor]) -> None:
        super().__init__()
        self.model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32)
        self.score = nn.Linear(self.model.config.hidden_size, 1)
        self.score.load_state_dict(head)

    def rows(self) -> list[Tensor]:
        prompts, responses = (uneven_rows().jagged(name).to_rows() for name in ("prompts", "responses"))
        pairs = [(prompt, torch.cat([prompt, response])[None]) for prompt, response in zip(prompts, responses, strict=True)]
        return [self.score(self.model(input_ids=ids).last_hidden_state[0])[len(prompt) - 1 : -1, 0] for prompt, ids in pairs]


def plain(folder: Path, found: dict[str, Tensor]) -> tuple[PlainCritic, Tensor, dict[str, float]]:
    """The critic after two steps from the head that was found; its first values; the numbers of the first step."""
    critic = PlainCritic(folder, {name: found[f"start.score.{name}"] for name in ("weight", "bias")})
    rows, numbers, first = uneven_rows(), dict[str, float](), torch.cat(critic.rows()).detach()
    mask = rows.jagged("response_mask").values.bool()
    old, target = rows.jagged("values").values[mask], rows.jagged("returns").values[mask]
    for _ in range(2):
        values = torch.cat(critic.rows())[mask]
        clipped = torch.minimum(torch.maximum(values, old - 0.3), old + 0.3)
        errors = torch.stack([(values - target) ** 2, (clipped - target) ** 2])
        loss = 0.5 * errors.amax(0).mean()
        critic.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(critic.parameters(), 0.7))
        with torch.no_grad():
            for parameter in critic.parameters():
                parameter.sub_(0.5 * parameter.grad)  # type: ignore[operator]
        numbers = numbers or {"critic/vf_loss": loss.item(), "critic/grad_norm": norm, "critic/vpred_mean": values.mean().item()}
    return critic, first, numbers


def check(folder: Path, found: dict[str, Tensor], losses: list[dict[str, float]]) -> None:
    critic, values, expected = plain(folder, found)
    torch.testing.assert_close(found["values"], values, atol=1e-5, rtol=0)
    assert sum(each.get("critic/vf_loss", 0.0) for each in losses) == pytest.approx(expected["critic/vf_loss"], abs=1e-6)
    for each in losses:
        assert each["critic/grad_norm"] == pytest.approx(expected["critic/grad_norm"], abs=1e-5)
        assert each["critic/lr"] == 0.5
    assert expected["critic/grad_norm"] > 0.1
    for name, parameter in critic.named_parameters():
        torch.testing.assert_close(found[name], parameter.detach(), atol=1e-5, rtol=0, msg=name)


@pytest.mark.parametrize("case", CRITICS)
def test_one_rank_trains_as_plain_torch_however_the_rows_are_cut(one_rank: None, model_folder: Path, case: str) -> None:
    found, numbers = CASES[case](model_folder)
    check(model_folder, found, [numbers])
    assert numbers["training/critic/optimizer_steps"] == 1


@pytest.mark.parametrize("case", [case for case in CRITICS if case in GROUP_CASES])
def test_two_ranks_train_as_plain_torch_however_the_rows_are_cut(two_ranks: GroupResults, model_folder: Path, case: str) -> None:
    check(model_folder, two_ranks.tensors(case), [numbers[case] for numbers in two_ranks.numbers])
    assert two_ranks.total(case, "training/critic/optimizer_steps") == 1


def test_a_checkpoint_leads_to_the_same_weights_bit_by_bit(two_ranks: GroupResults, one_rank: None, model_folder: Path) -> None:
    assert two_ranks.total("restored-critic", "same") == 2
    assert CASES["restored-critic"](model_folder)[1]["same"] == 1


def test_ranks_with_different_numbers_of_rows_are_joined_in_order(two_ranks: GroupResults) -> None:
    assert two_ranks.tensors("gathered")["all"].tolist() == [[1.0, 1.0]]


def test_a_new_head_is_drawn_as_the_architecture_draws_it_from_the_seed_alone(model_folder: Path) -> None:
    config = ModelConfig(path=str(model_folder))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    heads = [read_value_model(config, seed)[1] for seed in (5, 5, 6)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(heads[0].weight, heads[1].weight)
    assert not torch.equal(heads[0].weight, heads[2].weight)
    assert all(head.bias is not None and not head.bias.any() for head in heads)
    # initializer_range is 0.2; twelve numbers.
    assert 0.1 < float(torch.cat([head.weight.detach() for head in heads[1:]]).std()) < 0.35


def test_a_head_that_the_folder_holds_is_taken(model_folder: Path, tmp_path: Path) -> None:
    model: Any = Qwen3ForTokenClassification.from_pretrained(model_folder, num_labels=1)
    model.score.weight.data.fill_(0.25)
    model.score.bias.data.fill_(-1.0)
    model.save_pretrained(tmp_path)
    head = read_value_model(ModelConfig(path=str(tmp_path)), seed=5)[1]
    assert torch.equal(head.weight, torch.full_like(head.weight, 0.25))
    assert head.bias.tolist() == [-1.0]


def test_the_head_of_a_critic_in_half_precision_is_computed_in_full(one_rank: None, model_folder: Path) -> None:
    half = ModelConfig(path=str(model_folder), compute_dtype="bfloat16")
    engine = FSDPValueEngine(half, OptimizerConfig(optimizer="SGD", lr=0.1), seed=5)
    values = engine.evaluate(uneven_rows(), micro=MICRO["all"])
    exact = FSDPValueEngine(ModelConfig(path=str(model_folder)), OptimizerConfig(), seed=5).evaluate(uneven_rows(), micro=MICRO["all"])
    torch.testing.assert_close(values.values, exact.values, atol=0.1, rtol=0)
    # Numbers of bfloat16 have 8 bits; these have more.
    assert not torch.equal(values.values, values.values.bfloat16().float())


def test_a_folder_that_cannot_be_a_critic_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_value_model(ModelConfig(path=str(tmp_path)), seed=1)
    (tmp_path / "config.json").write_text('{"model_type": "clip_text_model"}')
    with pytest.raises(ConfigError, match="'clip_text_model', has no token classification model"):
        read_value_model(ModelConfig(path=str(tmp_path)), seed=1)
