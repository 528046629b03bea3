"""What every RolloutEngine does, over each implementation that runs without an accelerator."""

from collections.abc import Callable

import msgspec
import pytest
import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncrl.errors import EngineUnavailable, RolloutError
from asyncrl.rollout.continuation import Continuation
from asyncrl.rollout.embedded import EmbeddedEngine, EmbeddedOptions
from asyncrl.rollout.engine import RolloutEngine
from asyncrl.rollout.scripted import ScriptedEngine
from asyncrl.trajectory import FirstToken, GenerateOutput, GenerateRequest, SamplingParams, StopReason

MAX_MODEL_LEN = 24
SLOTS = 3


def model() -> nn.Module:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=11,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        eos_token_id=None,
        pad_token_id=None,
        bos_token_id=None,
    )
    made: nn.Module = Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]
    return made


def embedded() -> RolloutEngine:
    return EmbeddedEngine(model(), EmbeddedOptions(max_num_seqs=SLOTS, max_model_len=MAX_MODEL_LEN), digest=lambda weights: "digest")


def scripted() -> RolloutEngine:
    return ScriptedEngine(lambda request: ([1, 2, 3] * 20)[request.drawn :], max_num_seqs=SLOTS, max_model_len=MAX_MODEL_LEN)


@pytest.fixture(params=[embedded, scripted])
def asleep(request: pytest.FixtureRequest) -> RolloutEngine:
    make: Callable[[], RolloutEngine] = request.param
    return make()


@pytest.fixture
def engine(asleep: RolloutEngine) -> RolloutEngine:
    asleep.load(0, model().named_parameters())
    return asleep


def ask(number: int, *, prompt: int = 3, max_tokens: int = 4) -> GenerateRequest:
    return GenerateRequest(
        request_id=f"r{number}",
        uid=f"s0e0p{number}",
        session="0",
        prompt_ids=[1 + number % 9] * prompt,
        sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
    )


def drain(engine: RolloutEngine) -> dict[str, GenerateOutput]:
    outputs: dict[str, GenerateOutput] = {}
    while engine.unfinished:
        outputs |= {output.request_id: output for output in engine.step()}
    return outputs


def test_no_step_before_the_first_load(asleep: RolloutEngine) -> None:
    assert asleep.version == -1
    asleep.submit([ask(0)])
    with pytest.raises(EngineUnavailable):
        asleep.step()


def test_more_requests_than_slots_all_end_once(engine: RolloutEngine) -> None:
    engine.submit([ask(number, prompt=1 + number % 5, max_tokens=1 + number % 4) for number in range(8)])
    assert engine.unfinished == 8
    outputs = drain(engine)
    assert sorted(outputs) == [f"r{number}" for number in range(8)]
    for number in range(8):
        output = outputs[f"r{number}"]
        assert len(output.token_ids) == len(output.log_probs) == len(output.versions) == 1 + number % 4
        assert output.stop_reason is StopReason.LENGTH
        assert all(log_prob <= 0 for log_prob in output.log_probs)


def test_one_token_a_step(engine: RolloutEngine) -> None:
    engine.submit([ask(0, max_tokens=3)])
    assert engine.step() == engine.step() == []
    [output] = engine.step()
    assert len(output.token_ids) == 3
    assert engine.step() == []


def test_the_model_length_bounds_prompt_and_answer(engine: RolloutEngine) -> None:
    engine.submit([ask(0, prompt=MAX_MODEL_LEN - 2, max_tokens=10), ask(1, prompt=MAX_MODEL_LEN - 1)])
    outputs = drain(engine)
    assert [len(outputs[name].token_ids) for name in ("r0", "r1")] == [2, 1]
    assert outputs["r0"].stop_reason is StopReason.LENGTH


@pytest.mark.parametrize(
    "request_",
    [
        ask(0, prompt=0),
        ask(0, prompt=MAX_MODEL_LEN),
        ask(0, max_tokens=0),
        GenerateRequest(request_id="r0", uid="u", session="x", prompt_ids=[1], sampling=SamplingParams(max_tokens=1)),
        GenerateRequest(request_id="r0", uid="u", session="0", prompt_ids=[-1], sampling=SamplingParams(max_tokens=1)),
        GenerateRequest(request_id="r0", uid="u", session="0", prompt_ids=[1], sampling=SamplingParams(max_tokens=1, top_p=0.0)),
        GenerateRequest(request_id="r0", uid="u", session="0", prompt_ids=[1], sampling=SamplingParams(max_tokens=1, temperature=-1.0)),
    ],
)
def test_an_impossible_request_is_refused_by_name_and_none_of_its_submit_is_taken(engine: RolloutEngine, request_: GenerateRequest) -> None:
    with pytest.raises(RolloutError, match="r0"):
        engine.submit([ask(1), request_])
    assert engine.unfinished == 0


def test_a_request_id_serves_again_only_after_its_answer(engine: RolloutEngine) -> None:
    engine.submit([ask(0)])
    with pytest.raises(RolloutError, match="r0"):
        engine.submit([ask(0)])
    with pytest.raises(RolloutError):
        engine.submit([ask(1), ask(1)])
    drain(engine)
    engine.submit([ask(0)])
    assert list(drain(engine)) == ["r0"]


@pytest.mark.parametrize("steps", range(4))
def test_an_abort_returns_the_tokens_so_far(engine: RolloutEngine, steps: int) -> None:
    engine.submit([ask(number, max_tokens=8) for number in range(5)])
    for _ in range(steps):
        engine.step()
    outputs = {output.request_id: output for output in engine.abort(["r1", "r4", "never seen"])}
    assert sorted(outputs) == ["r1", "r4"]
    assert len(outputs["r1"].token_ids) == len(outputs["r1"].log_probs) == steps
    assert outputs["r4"].token_ids == []
    assert outputs["r1"].stop_reason is StopReason.ABORT
    assert engine.unfinished == 3
    assert len(engine.abort()) == 3
    assert engine.unfinished == 0
    assert engine.abort() == engine.step() == []


def test_an_abort_does_not_change_the_others(engine: RolloutEngine) -> None:
    def tokens(abort: bool) -> dict[str, list[int]]:
        engine.submit([ask(number, max_tokens=6) for number in range(3)])
        engine.step()
        if abort:
            engine.abort(["r0"])
        return {name: output.token_ids for name, output in drain(engine).items() if name != "r0"}

    assert tokens(abort=True) == tokens(abort=False)


def test_sleep_and_load_keep_what_is_in_flight(engine: RolloutEngine) -> None:
    engine.submit([ask(number, max_tokens=4) for number in range(5)])
    engine.step()
    engine.sleep()
    engine.step()
    engine.load(7, model().named_parameters())
    assert engine.version == 7
    outputs = drain(engine)
    assert len(outputs) == 5
    assert outputs["r0"].versions == [0, 0, 7, 7]
    assert outputs["r4"].versions == [7] * 4
    assert [len(output.token_ids) for output in outputs.values()] == [4] * 5


@pytest.mark.parametrize("cut", range(6))
def test_an_answer_goes_on_from_its_tokens_within_its_budget_and_with_its_own_draws(engine: RolloutEngine, cut: int) -> None:
    requests = [ask(number, max_tokens=6) for number in range(SLOTS)]
    engine.submit(requests)
    whole = drain(engine)
    answers = {request.request_id: Continuation(request) for request in requests}
    engine.submit(requests)
    for _ in range(cut):
        engine.step()
    for output in engine.abort():
        answers[output.request_id].add(output)
    engine.load(1, model().named_parameters())
    engine.submit([answer.rest for answer in answers.values()])
    for name, rest in drain(engine).items():
        assert len(rest.token_ids) == 6 - cut
        answers[name].add(rest)
        joined = answers[name].output
        assert joined is not None
        assert (joined.token_ids, joined.stop_reason) == (whole[name].token_ids, StopReason.LENGTH)
        assert joined.log_probs == pytest.approx(whole[name].log_probs, abs=1e-5)
        assert joined.versions == [0] * cut + [1] * (6 - cut)


def test_first_tokens_are_told_once_and_only_where_it_is_asked_for(engine: RolloutEngine) -> None:
    def telling(number: int) -> GenerateRequest:
        return msgspec.structs.replace(ask(number, max_tokens=2), report_start=True)

    engine.submit([telling(0), ask(1), ask(2), telling(3)])
    assert engine.started() == []
    engine.step()
    assert engine.started() == [FirstToken("r0", 0)]
    engine.load(5, model().named_parameters())
    drain(engine)
    assert engine.started() == [FirstToken("r3", 5)]
    assert engine.started() == []


def test_an_urgent_request_runs_alone_and_the_others_go_on_from_their_tokens(engine: RolloutEngine) -> None:
    engine.submit([ask(number, max_tokens=6) for number in range(SLOTS + 1)])
    engine.step()
    engine.step()
    engine.submit([msgspec.structs.replace(ask(9), urgent=True)])
    ended = [engine.step() for _ in range(4)]
    assert [[output.request_id for output in outputs] for outputs in ended] == [[], [], [], ["r9"]]
    [aborted] = engine.abort(["r0"])
    assert len(aborted.token_ids) == 2
    outputs = drain(engine)
    assert sorted(outputs) == ["r1", "r2", "r3"]
    assert all(len(output.token_ids) == 6 for output in outputs.values())
