"""Log-probs and entropy from logits."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms import logprobs
from asyncrl.algorithms.logprobs import (
    entropy_from_logits,
    log_probs_from_hidden,
    log_probs_from_logits,
    sum_pi_squared_from_logits,
)
from tests.unit.algorithms.largest_tensor import LargestTensor


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


@pytest.mark.parametrize("function", [log_probs_from_logits, entropy_from_logits, sum_pi_squared_from_logits])
def test_neither_direction_makes_a_float32_copy_of_the_logits(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 1 << 12)
    logits = torch.randn(64, 512).bfloat16().requires_grad_()
    tokens = (torch.randint(0, 512, (64,)),) if function is log_probs_from_logits else ()
    with LargestTensor() as seen:
        result = function(logits, *tokens, 0.7)
        if result.requires_grad:
            result.sum().backward()
    assert seen.elements[torch.float32] <= 1 << 12
    assert seen.elements.get(torch.bfloat16, 0) <= logits.numel(), "one gradient, in the dtype of the logits"


@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-12), (torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
def test_without_logits_values_and_gradients_are_the_same(
    dtype: torch.dtype, error: float, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "HEAD_CHUNK_ELEMENTS", 1 << 10)
    generator = torch.Generator().manual_seed(2)
    hidden, head = (torch.randn(rows, 16, generator=generator, dtype=torch.float64).to(dtype) for rows in (40, 200))
    tokens, slope = torch.randint(0, 200, (40,), generator=generator), torch.randn(40, generator=generator)
    leaves = [each.clone().requires_grad_() for each in (hidden, head)]
    with LargestTensor() as seen:
        ours = log_probs_from_hidden(leaves[0], leaves[1], tokens, temperature)
        grads = torch.autograd.grad(ours, leaves, slope.to(ours.dtype))
    plain = [each.clone().requires_grad_() for each in (hidden, head)]
    expected = log_probs_from_logits(plain[0] @ plain[1].T, tokens, temperature)
    assert ours.dtype == expected.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=min(error, 1e-5))
    for left, right in zip(grads, torch.autograd.grad(expected, plain, slope.to(ours.dtype)), strict=True):
        torch.testing.assert_close(left, right, rtol=error, atol=error)
    assert max(seen.elements.values()) < 40 * 200


def test_no_hidden_state_gives_no_log_prob() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        hidden, head = torch.zeros(0, 4, dtype=dtype, requires_grad=True), torch.zeros(9, 4, dtype=dtype)
        result = log_probs_from_hidden(hidden, head, torch.zeros(0, dtype=torch.int64), 1.0)
        assert result.shape == (0,)
        assert torch.autograd.grad(result.sum(), hidden)[0].shape == (0, 4)
    with pytest.raises(ValueError, match="temperature"):
        log_probs_from_hidden(hidden, head, torch.zeros(0, dtype=torch.int64), 0.0)
