"""What an agent loop returns: what can be no row fails its own session, and plain numbers reach the row."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from asyncrl.agents.chat import ChatTokenizer
from asyncrl.agents.columns import group_rows
from asyncrl.agents.group import GroupOutcome, SessionFailure, run_group
from asyncrl.agents.loop import SessionContext
from asyncrl.agents.output import checked_output
from asyncrl.errors import DataError
from asyncrl.trajectory import (
    GenerateOutput,
    GenerateRequest,
    PromptGroup,
    RewardItem,
    RewardResult,
    SamplingParams,
    StopReason,
    Trajectory,
)

GROUP = PromptGroup(
    uid="u0",
    partition_id="train",
    prompt="3+4=",
    data_source="any",
    sessions=2,
    sampling=SamplingParams(max_tokens=4),
    seed=1,
    lease=1,
    step=5,
)
GOOD = Trajectory(prompt_ids=[5, 6], response_ids=[7, 8], response_mask=[1, 0], log_probs=[-0.5, 0.0], versions=[4, -1])


def changed(**fields: Any) -> Trajectory:
    return msgspec.structs.replace(GOOD, **fields)


class Loop:
    """Session 1 returns what the test wants, session 0 a good output."""

    def __init__(self, returned: Any) -> None:
        self._returned = returned

    async def run(self, session: SessionContext) -> list[Trajectory]:
        if session.session == "0":
            return [GOOD]
        if isinstance(self._returned, Exception):
            raise self._returned
        return self._returned  # type: ignore[no-any-return]


async def run(tokenizer: ChatTokenizer, returned: Any) -> GroupOutcome:
    """The outcome, which has become rows and could travel."""

    async def score(items: list[RewardItem]) -> list[RewardResult]:
        return [RewardResult(score=1.0)] * len(items)

    async def generate(request: GenerateRequest) -> GenerateOutput:
        raise AssertionError(request)

    outcome = await run_group(GROUP, Loop(returned), score, generate=generate, tokenizer=tokenizer)
    rows = group_rows(GROUP, outcome.rows)
    msgspec.msgpack.encode((rows.tags, outcome.failures, outcome.oldest_version))
    return outcome


BAD = [
    (changed(response_ids=[-1, 8]), "response_ids has values from -1 to 8, expected 0 to 2147483647"),
    (changed(response_ids=[7, 2**32]), "response_ids has values from 7 to 4294967296, expected 0 to 2147483647"),
    (changed(response_ids=[7, 10**30]), "response_ids holds int, expected integers"),
    (changed(response_ids=[7, None]), "response_ids holds NoneType, int, expected integers"),
    (changed(response_ids=[7.0, 8]), "response_ids holds float, int, expected integers"),
    (changed(response_ids=["7", "8"]), "response_ids holds str, expected integers"),
    (changed(response_ids=[[7], [8]]), "response_ids holds list, expected integers"),
    (changed(response_ids=[[7], 8]), "response_ids is no list of integers: "),
    (changed(prompt_ids=[5, -6]), "prompt_ids has values from -6 to 5, expected 0 to 2147483647"),
    (changed(prompt_ids=[None]), "prompt_ids holds NoneType, expected integers"),
    (changed(response_mask=[1, 2]), "response_mask has values from 1 to 2, expected 0 to 1"),
    (changed(response_mask=[1, None]), "response_mask holds NoneType, int, expected integers"),
    (changed(log_probs=[None, 0.0]), "log_probs holds NoneType, float, expected numbers"),
    (changed(log_probs=[float("-inf"), 0.0]), "log_probs has values from -inf to 0.0, expected finite ones"),
    (changed(log_probs=[-1e39, 0.0]), "log_probs has values from -1e+39 to 0.0, expected finite ones"),
    (changed(log_probs=["-1", "0"]), "log_probs holds str, expected numbers"),
    (changed(versions=[4, None]), "versions holds NoneType, int, expected integers"),
    (changed(versions=[4, 2**31]), "versions has values from 4 to 2147483648, expected -1 to 2147483647"),
    (changed(versions=[-1, -1]), "versions has -1 where response_mask is 1, expected the version that sampled the token"),
    (changed(num_turns=None), "num_turns holds NoneType, expected integers"),
    (changed(num_turns=10**30), "num_turns holds int, expected integers"),
    (changed(stop_reason="tired"), "stop_reason is 'tired', expected one of stop, length, abort"),
]


@pytest.mark.parametrize(("output", "reason"), BAD, ids=[reason for _, reason in BAD])
async def test_an_output_with_one_bad_element_fails_its_session_alone(tokenizer: ChatTokenizer, output: Trajectory, reason: str) -> None:
    outcome = await run(tokenizer, [GOOD, output])
    assert [str(row.key) for row in outcome.rows] == ["u0_0_0"]
    [failure] = outcome.failures
    assert failure.session == "1"
    assert failure.reason.startswith(f"DataError: output 1: {reason}")


@pytest.mark.parametrize("returned", [GOOD, None, [None], {"response_ids": [1]}, [changed(versions=None)]])
async def test_what_is_no_list_of_outputs_fails_its_session_alone(tokenizer: ChatTokenizer, returned: object) -> None:
    outcome = await run(tokenizer, returned)
    assert [failure.session for failure in outcome.failures] == ["1"]
    assert [str(row.key) for row in outcome.rows] == ["u0_0_0"]


async def test_outputs_that_can_be_looked_at_only_once_are_as_good_as_a_list(tokenizer: ChatTokenizer) -> None:
    def outputs() -> Iterator[Trajectory]:
        yield GOOD
        yield GOOD

    assert [str(row.key) for row in (await run(tokenizer, outputs())).rows] == ["u0_0_0", "u0_1_0", "u0_1_1"]


async def test_an_answer_that_cannot_be_decoded_fails_its_session_alone(tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(ids: list[int]) -> str:
        if ids == [9]:
            raise OverflowError("out of range")
        return "text"

    monkeypatch.setattr(tokenizer, "decode", decode)
    outcome = await run(tokenizer, [changed(response_ids=[9], response_mask=[1], log_probs=[0.0], versions=[4])])
    assert outcome.failures == [SessionFailure(session="1", reason="OverflowError: out of range")]


async def test_a_cause_that_has_no_utf8_form_is_told_in_escapes(tokenizer: ChatTokenizer) -> None:
    outcome = await run(tokenizer, ValueError("no tool called \ud800"))
    assert outcome.failures == [SessionFailure(session="1", reason="ValueError: no tool called \\ud800")]


async def test_numbers_of_numpy_become_plain_ones(tokenizer: ChatTokenizer) -> None:
    arrays = {
        "response_ids": np.array([7, 8]),
        "response_mask": np.array([True, False]),
        "log_probs": np.array([-0.5, 0.0], np.float32),
        "versions": np.array([4, -1], np.int32),
    }
    outcome = await run(tokenizer, [changed(**arrays, num_turns=np.int64(2), stop_reason="stop"), changed(log_probs=[-1, 0])])
    first, second = [row.trajectory for row in outcome.rows[1:]]
    assert first == GOOD
    assert type(first.num_turns) is int
    assert type(first.stop_reason) is StopReason
    assert second.log_probs == [-1.0, 0.0]


ANYTHING = st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=2), st.lists(st.integers(), max_size=2))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["prompt_ids", "response_ids", "response_mask", "log_probs", "versions"]),
    st.lists(ANYTHING, min_size=2, max_size=2),
)
def test_an_output_is_a_row_or_refused_by_name(field: str, values: list[Any]) -> None:
    changed_output, refused = changed(**{field: values}), ""
    try:
        # Raises for values of other types than those of the fields.
        output = msgspec.convert(msgspec.to_builtins(checked_output(changed_output, "output 0", 4)), Trajectory)
    except DataError as error:
        output, refused = GOOD, str(error)
    # A mask may also ask for a version that is not there.
    named = "versions" if "where response_mask is 1" in refused else field
    assert refused == "" or refused.startswith(f"output 0: {named}")
    assert all(0 <= value < 2**31 for value in output.prompt_ids + output.response_ids)
