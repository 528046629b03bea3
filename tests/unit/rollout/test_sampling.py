"""The draw: its support, its log-probs, its frequencies."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from asyncrl.rollout.sampling import Sampler, uniform
from asyncrl.trajectory import SamplingParams
from tests.unit.rollout.tiny import ask

LOGITS = torch.tensor([0.5, 0.2, 0.2, 0.1]).log()


def draw(logits: torch.Tensor, number: float, **params: float) -> list[float]:
    """Token and log-prob."""
    sampling = SamplingParams(**{"max_tokens": 1} | params)  # type: ignore[arg-type]
    tokens, log_probs = Sampler([sampling], torch.device("cpu")).draw(logits[None], [number])
    return [tokens[0], log_probs[0]]


@pytest.mark.parametrize(("number", "token"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.69, 1), (0.71, 2), (0.91, 3), (1 - 2**-53, 3)])
def test_the_token_is_the_first_whose_cumulative_probability_passes_the_number(number: float, token: int) -> None:
    assert draw(LOGITS, number)[0] == token
    assert draw(LOGITS, number)[1] == pytest.approx(float(LOGITS[token]), abs=1e-6)


def test_top_k_keeps_k_and_the_log_probs_are_those_of_what_is_left() -> None:
    assert draw(LOGITS, 0.99, top_k=2) == pytest.approx([1, torch.tensor(0.2 / 0.7).log().item()], abs=1e-6)
    assert draw(LOGITS, 0.99, top_k=1) == pytest.approx([0, 0], abs=1e-9)


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    assert {draw(LOGITS, number / 100, top_p=0.6)[0] for number in range(100)} == {0, 1}
    assert {draw(LOGITS, number / 100, top_p=0.3)[0] for number in range(100)} == {0}
    assert {draw(LOGITS, number / 100, top_p=0.95)[0] for number in range(100)} == {0, 1, 2, 3}


def test_top_p_counts_what_top_k_left() -> None:
    assert {draw(LOGITS, number / 100, top_k=2, top_p=0.7)[0] for number in range(100)} == {0}


def test_temperature_scales_and_zero_is_the_untempered_argmax() -> None:
    assert draw(LOGITS, 0.0, temperature=0.5)[1] == pytest.approx((LOGITS * 2).log_softmax(-1)[0].item(), abs=1e-6)
    assert draw(LOGITS, 0.99, temperature=0.0, top_p=0.1) == pytest.approx([0, float(LOGITS[0])], abs=1e-6)


def test_rows_with_different_parameters_are_drawn_side_by_side() -> None:
    params = [SamplingParams(max_tokens=1, temperature=0.0), SamplingParams(max_tokens=1, top_k=1), SamplingParams(max_tokens=1)]
    tokens, log_probs = Sampler(params, torch.device("cpu")).draw(LOGITS.expand(3, 4), [0.99] * 3)
    assert tokens == [0, 0, 3]
    assert log_probs == pytest.approx([float(LOGITS[0]), 0.0, float(LOGITS[3])], abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-30, 30), min_size=2, max_size=12),
    st.integers(0, 2**53 - 1),
    st.floats(0.1, 3.0),
    st.integers(-1, 4),
    st.floats(0.05, 1.0),
)
def test_a_token_outside_the_support_is_never_drawn(values: list[float], bits: int, temperature: float, top_k: int, top_p: float) -> None:
    logits = torch.tensor(values, dtype=torch.float64)
    dead = torch.arange(len(values)) % 3 == 2
    logits[dead] = -torch.inf
    drawn, log_prob = draw(logits, bits / 2**53, temperature=temperature, top_k=top_k, top_p=top_p)
    token = int(drawn)
    assert not dead[token]
    assert log_prob > -torch.inf
    if top_k > 0:
        assert int((logits > logits[token]).sum()) < top_k
    likelier = (logits / temperature).softmax(-1)[logits > logits[token]].sum()
    assert likelier < top_p + 1e-9 or top_k > 0


def test_frequencies_are_the_probabilities() -> None:
    drawn = [draw(LOGITS, uniform(ask(0, 1), position))[0] for position in range(2000)]
    for token, share in enumerate([0.5, 0.2, 0.2, 0.1]):
        assert drawn.count(token) / 2000 == pytest.approx(share, abs=0.04)


def test_the_number_depends_on_seed_uid_session_and_position() -> None:
    requests = [ask(0, 1), ask(1, 1), ask(0, 1, session=1), ask(0, 1, seed=9)]
    numbers = [uniform(request, position) for request in requests for position in (0, 1)]
    assert len(set(numbers)) == 8
    assert all(0 <= number < 1 for number in numbers)
    assert uniform(ask(0, 1), 3) == uniform(ask(0, 4), 3)
