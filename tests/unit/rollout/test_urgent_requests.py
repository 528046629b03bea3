"""Urgent requests of the embedded engine: what made way for them is sampled as if nothing had come between."""

import msgspec
import pytest

from tests.unit.rollout.tiny import ask, drain, engine_of, qwen


@pytest.mark.parametrize("waves", [False, True])
def test_answers_that_made_way_are_token_for_token_those_that_did_not(waves: bool) -> None:
    model = qwen()
    requests = [ask(number, 2 + number, max_tokens=7, temperature=(0.0, 1.0, 0.7)[number % 3]) for number in range(6)]
    urgent = [msgspec.structs.replace(ask(number, 3, max_tokens=4), urgent=True) for number in range(6, 12)]
    alone, plain = engine_of(model, full_determinism=waves), engine_of(model, full_determinism=waves)
    alone.submit(urgent)
    plain.submit(requests)
    expected = drain(alone) | drain(plain)

    engine = engine_of(model, full_determinism=waves)
    engine.submit(requests)
    first = [engine.step() for _ in range(3)]
    engine.submit(urgent)
    ended: list[str] = []
    found = {output.request_id: output for outputs in first for output in outputs}
    while engine.unfinished:
        outputs = engine.step()
        ended += [output.request_id for output in outputs]
        found |= {output.request_id: output for output in outputs}
    assert sorted(ended[:6]) == sorted(request.request_id for request in urgent)
    assert found.keys() == expected.keys()
    for name, output in found.items():
        assert output.token_ids == expected[name].token_ids
        assert output.log_probs == pytest.approx(expected[name].log_probs, abs=1e-5)
