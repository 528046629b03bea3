"""The embedded engine against plain forwards and transformers' own generate."""

from typing import Any, cast

import pytest
import torch
from torch import nn

from asyncrl.errors import ConfigError, RolloutError, WeightSyncError
from asyncrl.rollout.embedded import EmbeddedEngine
from asyncrl.rollout.model import eos_token_ids
from asyncrl.trajectory import GenerateOutput
from tests.unit.rollout.tiny import VOCABULARY, ask, drain, engine_of, llama, plain_log_probs, qwen

RAGGED = [ask(number, 1 + (7 * number) % 11, max_tokens=1 + number % 7, temperature=0.7) for number in range(11)]


@pytest.mark.parametrize("model", [qwen(), qwen(tied=False), llama()], ids=["qwen3-tied", "qwen3", "llama"])
@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 12}, {"full_determinism": True}, {"max_num_seqs": 64}])
def test_log_probs_are_those_of_a_plain_forward(model: nn.Module, options: dict[str, Any]) -> None:
    engine = engine_of(model, **options)
    engine.submit(RAGGED)
    outputs = drain(engine)
    for request in RAGGED:
        output = outputs[request.request_id]
        assert len(output.token_ids) == request.sampling.max_tokens
        assert output.log_probs == pytest.approx(plain_log_probs(model, request.prompt_ids, output.token_ids, 0.7), abs=1e-5)
        assert output.versions == [0] * len(output.token_ids)


def test_eager_attention_gives_the_same() -> None:
    model = qwen()
    engine = engine_of(model)
    cast(Any, engine.model).set_attn_implementation("eager")
    engine.submit(RAGGED)
    outputs = drain(engine)
    for request in RAGGED:
        output = outputs[request.request_id]
        assert output.log_probs == pytest.approx(plain_log_probs(model, request.prompt_ids, output.token_ids, 0.7), abs=1e-5)


def test_greedy_is_what_transformers_generates_with_untempered_log_probs() -> None:
    model = qwen()
    requests = [ask(number, 1 + number * 2, max_tokens=8, temperature=0.0) for number in range(6)]
    engine = engine_of(model)
    engine.submit(requests)
    outputs = drain(engine)
    for request in requests:
        ids = torch.tensor([request.prompt_ids])
        expected = cast(Any, model).generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=8)
        output = outputs[request.request_id]
        assert output.token_ids == expected[0, len(request.prompt_ids) :].tolist()
        assert output.log_probs == pytest.approx(plain_log_probs(model, request.prompt_ids, output.token_ids), abs=1e-5)


def test_answers_do_not_depend_on_what_else_is_in_the_batch() -> None:
    model = qwen()
    alone: dict[str, GenerateOutput] = {}
    for request in RAGGED:
        engine = engine_of(model)
        engine.submit([request])
        alone |= drain(engine)
    together = engine_of(model, max_num_seqs=5)
    together.submit(RAGGED[:6])
    first = together.step()
    together.submit(RAGGED[6:][::-1])
    outputs = {output.request_id: output for output in first} | drain(together)
    for name, output in outputs.items():
        assert output.token_ids == alone[name].token_ids
        assert output.log_probs == pytest.approx(alone[name].log_probs, abs=1e-5)


def test_sessions_of_one_prompt_differ_and_seeds_repeat() -> None:
    def answers(seed: int) -> list[list[int]]:
        engine = engine_of(qwen(), max_num_seqs=16)
        engine.submit([ask(0, 3, session=session, seed=seed, max_tokens=8) for session in range(8)])
        return [output.token_ids for _, output in sorted(drain(engine).items())]

    assert answers(1) == answers(1)
    assert answers(1) != answers(2)
    assert len({tuple(answer) for answer in answers(1)}) > 1


def test_an_aborted_answer_continues_with_the_draws_it_would_have_had() -> None:
    model = qwen()
    whole = ask(3, 4, max_tokens=9)
    engine = engine_of(model)
    engine.submit([whole])
    expected = drain(engine)[whole.request_id].token_ids
    for cut in range(1, 8):
        engine.submit([whole])
        for _ in range(cut):
            engine.step()
        [partial] = engine.abort()
        assert partial.token_ids == expected[:cut]
        rest = ask(3, 4, drawn=cut, max_tokens=9 - cut)
        rest.prompt_ids.extend(partial.token_ids)
        engine.submit([rest])
        assert partial.token_ids + drain(engine)[rest.request_id].token_ids == expected


def test_full_determinism_is_bitwise_whatever_the_order_of_submission() -> None:
    def run(orders: list[list[int]]) -> dict[str, GenerateOutput]:
        engine = engine_of(qwen(), full_determinism=True, max_num_seqs=3)
        for order in orders:
            engine.submit([RAGGED[number] for number in order])
        return drain(engine)

    straight = run([list(range(11))])
    assert run([list(range(11))[::-1]]) == straight
    parts = run([[0, 4, 9], [1, 2, 10], [3, 5, 6, 7, 8]])
    assert run([[8, 7, 3, 5, 6], [4, 9, 0], [10, 1, 2]]) == parts


def test_a_load_in_flight_prefills_again_so_that_each_log_prob_is_of_its_version() -> None:
    old, new = qwen(0), qwen(1)
    engine = engine_of(old)
    requests = [ask(number, 2 + number, max_tokens=6) for number in range(6)]
    engine.submit(requests)
    for _ in range(3):
        engine.step()
    engine.load(1, new.named_parameters())
    outputs = drain(engine)
    for request in requests:
        output = outputs[request.request_id]
        by_version = [plain_log_probs(model, request.prompt_ids, output.token_ids) for model in (old, new)]
        assert output.log_probs == pytest.approx([by_version[v][place] for place, v in enumerate(output.versions)], abs=1e-5)
    assert outputs["r0_0"].versions == [0, 0, 0, 1, 1, 1]
    assert outputs["r5_0"].versions == [1] * 6


def test_sleep_gives_the_cache_back_and_the_answer_goes_on() -> None:
    model = qwen()
    request = ask(1, 5, max_tokens=6)
    engine = engine_of(model)
    engine.submit([request])
    assert engine.cache_bytes == 0
    engine.step()
    engine.step()
    assert engine.cache_bytes > 0
    engine.sleep()
    assert engine.cache_bytes == 0
    output = drain(engine)[request.request_id]
    assert output.log_probs == pytest.approx(plain_log_probs(model, request.prompt_ids, output.token_ids), abs=1e-5)


@pytest.mark.parametrize(
    ("eos", "ignore", "reason"), [([6], False, "stop"), ([1, 6], False, "stop"), ([6], True, "length"), ([], False, "length")]
)
def test_end_of_sequence_tokens_end_an_answer_and_belong_to_it(eos: list[int], ignore: bool, reason: str) -> None:
    model = qwen()
    request = ask(2, 3, max_tokens=30, ignore_eos=ignore)
    engine = engine_of(model, eos=[])
    engine.submit([request])
    free = drain(engine)[request.request_id].token_ids
    ends = [place for place, token in enumerate(free) if token in eos]
    assert ends or not eos
    engine = engine_of(model, eos=eos)
    engine.submit([request])
    output = drain(engine)[request.request_id]
    assert output.stop_reason == reason
    assert output.token_ids == (free[: ends[0] + 1] if reason == "stop" else free)


def test_the_end_tokens_come_from_generation_config_before_config() -> None:
    model = cast(Any, qwen())
    model.config.eos_token_id = 3
    model.generation_config.eos_token_id = None
    assert engine_of(model).eos_token_ids == {3}
    model.generation_config.eos_token_id = [4, 5]
    assert eos_token_ids(model) == [4, 5]


def test_unknown_tokens_are_refused() -> None:
    request = ask(0, 2)
    request.prompt_ids.append(VOCABULARY)
    with pytest.raises(RolloutError, match="outside"):
        engine_of(qwen()).submit([request])


def test_weights_that_do_not_fit_leave_the_engine_without_a_version() -> None:
    model = qwen()
    named = [(name, weight.detach()) for name, weight in model.named_parameters()]
    engine = engine_of(model)
    for wrong in (named[:-1], [*named, ("extra", torch.zeros(1))], [(named[0][0], torch.zeros(2, 2)), *named[1:]]):
        with pytest.raises(WeightSyncError):
            engine.load(1, wrong)
        assert engine.version == -1
    engine.load(2, named)
    assert engine.version == 2


def test_a_tied_head_may_come_under_both_names_if_they_agree() -> None:
    model = qwen()
    named = dict(model.named_parameters())
    embedding = named.pop("model.embed_tokens.weight")
    engine = engine_of(model)
    assert engine.load(1, [*named.items(), ("lm_head.weight", embedding)]) == engine.load(1, model.named_parameters())
    engine.load(2, [*model.named_parameters(), ("lm_head.weight", embedding)])
    with pytest.raises(WeightSyncError, match="tied"):
        engine.load(3, [*model.named_parameters(), ("lm_head.weight", embedding + 1)])


def test_the_engine_shares_no_tensor_with_what_it_was_given() -> None:
    model = qwen()
    engine = engine_of(model)
    held = {weight.data_ptr() for weight in engine.model.parameters()}
    assert not held & {weight.data_ptr() for weight in model.parameters()}


def test_a_model_that_cannot_look_back_far_enough_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_model_len"):
        engine_of(qwen(), max_model_len=129)


def test_a_folder_with_code_of_its_own_is_refused(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "auto_map": {"AutoModelForCausalLM": "evil.Model"}}')
    with pytest.raises(ConfigError, match="auto_map"):
        EmbeddedEngine.from_folder(str(tmp_path), engine_of(qwen()).options, digest=str)
    with pytest.raises(ConfigError, match=r"config\.json"):
        EmbeddedEngine.from_folder(str(tmp_path / "absent"), engine_of(qwen()).options, digest=str)


def test_a_folder_is_read(tmp_path: Any) -> None:
    model = qwen()
    cast(Any, model).save_pretrained(tmp_path)
    engine = EmbeddedEngine.from_folder(str(tmp_path), engine_of(model).options, digest=str)
    for name, weight in engine.model.named_parameters():
        assert torch.equal(weight, dict(model.named_parameters())[name])
