"""Log-probs and entropy from logits."""

import math

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms import logprobs
from asyncrl.algorithms.logprobs import entropy_from_logits, log_probs_from_logits, sum_pi_squared_from_logits


def example(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(9, 11, generator=generator, dtype=torch.float64) * 3
    return logits.to(dtype), torch.randint(0, 11, (9,), generator=generator)


@pytest.fixture(params=[1, 25, 10_000])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", request.param)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_values_equal_a_log_softmax(temperature: float) -> None:
    logits, tokens = example()
    table = torch.log_softmax(logits / temperature, -1)
    torch.testing.assert_close(log_probs_from_logits(logits, tokens, temperature), table[torch.arange(9), tokens])
    torch.testing.assert_close(entropy_from_logits(logits, temperature), -(table.exp() * table).sum(-1))
    torch.testing.assert_close(sum_pi_squared_from_logits(logits, temperature), (table * 2).exp().sum(-1))


@pytest.mark.usefixtures("chunk")
def test_gradients_equal_finite_differences() -> None:
    logits, tokens = example()
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: log_probs_from_logits(x, tokens, 0.7), (logits,))
    assert torch.autograd.gradcheck(lambda x: entropy_from_logits(x, 0.7), (logits,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_logits_give_float32_results_and_a_gradient_of_their_own_dtype(dtype: torch.dtype) -> None:
    logits, tokens = example(dtype)
    leaf = logits.clone().requires_grad_()
    result = log_probs_from_logits(leaf, tokens, 1.0) + entropy_from_logits(leaf, 1.0)
    (grad,) = torch.autograd.grad(result.sum(), leaf)
    assert result.dtype == torch.float32
    assert grad.dtype == dtype
    wide = logits.double()
    expected = log_probs_from_logits(wide, tokens, 1.0) + entropy_from_logits(wide, 1.0)
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)


def test_forbidden_tokens_and_extreme_logits_stay_finite() -> None:
    logits = torch.tensor([[0.0, -math.inf, 0.0], [1e4, 0.0, -1e4]], requires_grad=True)
    entropy = entropy_from_logits(logits, 1.0)
    log_probs = log_probs_from_logits(logits, torch.tensor([0, 0]), 1.0)
    (grad,) = torch.autograd.grad(entropy.sum() + log_probs.sum(), logits)
    assert entropy.tolist() == pytest.approx([math.log(2), 0.0])
    assert bool(torch.isfinite(grad).all())


def test_no_token_gives_no_log_prob() -> None:
    logits = torch.zeros(0, 5, requires_grad=True)
    result = log_probs_from_logits(logits, torch.zeros(0, dtype=torch.int64), 1.0)
    (grad,) = torch.autograd.grad(result.sum(), logits)
    assert grad.shape == (0, 5)
    assert result.shape == entropy_from_logits(logits, 1.0).shape == (0,)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_that_is_not_positive_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        log_probs_from_logits(*example(), temperature)
    with pytest.raises(ValueError, match="temperature"):
        entropy_from_logits(example()[0], temperature)
