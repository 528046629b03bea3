"""An answer in parts: budget, draw positions, and what it is as a whole."""

import msgspec
import pytest

from asyncrl.rollout.continuation import Continuation
from asyncrl.trajectory import GenerateOutput, GenerateRequest, Kept, SamplingParams, StopReason

REQUEST = GenerateRequest(
    request_id="r", uid="u", session="0", prompt_ids=[7, 8], sampling=SamplingParams(max_tokens=10, temperature=0.5), seed=3, drawn=5
)


def part(tokens: list[int], version: int, reason: StopReason = StopReason.ABORT) -> GenerateOutput:
    return GenerateOutput(
        request_id="anything",
        token_ids=tokens,
        log_probs=[-float(token) for token in tokens],
        versions=[version] * len(tokens),
        stop_reason=reason,
    )


def ended(answer: Continuation) -> GenerateOutput | None:
    return answer.output


def test_after_4_and_3_of_10_tokens_6_and_3_are_left() -> None:
    answer = Continuation(REQUEST)
    assert answer.rest == REQUEST
    answer.add(part([1, 2, 3, 4], 0))
    assert answer.rest.sampling == SamplingParams(max_tokens=6, temperature=0.5)
    assert (answer.rest.prompt_ids, answer.rest.drawn) == ([7, 8, 1, 2, 3, 4], 9)
    answer.add(part([5, 6, 7], 1))
    assert (answer.rest.sampling.max_tokens, answer.rest.drawn) == (3, 12)
    assert ended(answer) is None
    answer.add(part([8, 9, 10], 3, StopReason.LENGTH))
    assert ended(answer) == GenerateOutput(
        request_id="r",
        token_ids=list(range(1, 11)),
        log_probs=[-float(token) for token in range(1, 11)],
        versions=[0] * 4 + [1] * 3 + [3] * 3,
        stop_reason=StopReason.LENGTH,
    )
    assert REQUEST.prompt_ids == [7, 8]


def test_an_abort_without_a_token_changes_nothing() -> None:
    answer = Continuation(REQUEST)
    answer.add(part([], 0))
    assert answer.rest == REQUEST
    assert ended(answer) is None
    answer.add(part([1], 2, StopReason.STOP))
    output = ended(answer)
    assert output is not None
    assert (output.versions, output.stop_reason) == ([2], "stop")


def test_an_abort_that_used_the_budget_up_is_the_end_and_no_other_is() -> None:
    answer = Continuation(REQUEST)
    answer.add(part(list(range(9)), 0))
    assert ended(answer) is None
    answer.add(part([9], 0))
    output = ended(answer)
    assert output is not None
    assert output.stop_reason is StopReason.LENGTH


@pytest.mark.parametrize("reason", list(StopReason))
def test_what_was_kept_goes_on_as_if_it_had_never_stopped(reason: StopReason) -> None:
    first = Continuation(REQUEST)
    first.add(part([1, 2], 4, reason))
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(first.kept), type=Kept)
    assert kept.prompt_ids == [7, 8]
    again = Continuation(REQUEST, kept)
    assert again.output == first.output
    assert again.rest == first.rest
    again.add(part([3], 5))
    assert kept.token_ids == [1, 2]
