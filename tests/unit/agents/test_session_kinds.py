"""A greedy session beside those of a prompt, and the parts of a reward that a group asks for."""

import pytest

from asyncrl.agents.chat import ChatTokenizer
from asyncrl.agents.columns import group_rows
from asyncrl.agents.group import components, run_group
from asyncrl.agents.single_turn import SingleTurn
from asyncrl.errors import MissingComponent, RewardError
from asyncrl.trajectory import GenerateRequest, RewardItem, RewardResult, SamplingParams, Status, TrajectoryKey
from tests.unit.agents.test_run_group import engine, judge, prompt_group, right, run

PARTS = ["right", "brief"]
SAMPLING = SamplingParams(temperature=0.7, top_p=0.9, top_k=5, max_tokens=4)


def in_parts(item: RewardItem) -> RewardResult:
    """``brief`` is missing where the answer is 8."""
    extra = {"right": item.solution_str == item.ground_truth, "brief": 0.5, "note": "x"}
    return RewardResult(score=0.25, extra={name: value for name, value in extra.items() if (name, item.solution_str) != ("brief", "8")})


async def test_a_greedy_session_takes_the_likeliest_tokens_and_leaves_a_row_of_its_own(tokenizer: ChatTokenizer) -> None:
    group = prompt_group(sessions=2, sampling=SAMPLING, greedy_baseline=True)
    seen: list[GenerateRequest] = []
    answers = {session: tokenizer.encode_prompt(text) for session, text in (("0", "7"), ("1", "8"), ("g", "7"))}
    outcome = await run_group(group, SingleTurn(), judge(right), generate=engine(answers, seen), tokenizer=tokenizer)
    assert [str(row.key) for row in outcome.rows] == ["s1e0p7_0_0", "s1e0p7_1_0", "s1e0p7_g_0"]
    assert [row.score for row in outcome.rows] == [1.0, 0.0, 1.0]
    assert [request.sampling for request in seen] == [SAMPLING, SAMPLING, SamplingParams(temperature=0.0, max_tokens=4)]
    assert group_rows(group, outcome.rows).tags[2]["session"] == "g"


async def test_a_greedy_session_that_fails_is_named(tokenizer: ChatTokenizer) -> None:
    outcome = await run(tokenizer, {"1": tokenizer.encode_prompt("7")}, judge(right), sessions=2, greedy_baseline=True)
    assert outcome.status is Status.FAILURE
    assert [failure.session for failure in outcome.failures] == ["0", "g"]
    assert [str(row.key) for row in outcome.rows] == ["s1e0p7_1_0"]


async def test_the_parts_asked_for_are_a_column_in_their_order(tokenizer: ChatTokenizer) -> None:
    answers = {str(session): tokenizer.encode_prompt(text) for session, text in enumerate("795")}
    outcome = await run(tokenizer, answers, judge(in_parts), reward_components=["brief", "score", "right"])
    column = group_rows(prompt_group(reward_components=["brief", "score", "right"]), outcome.rows).fields["reward_components"]
    assert (column.dtype, column.trailing, column.to_list()) == ("float32", (3,), [[0.5, 0.25, 1.0], [0.5, 0.25, 0.0], [0.5, 0.25, 0.0]])


async def test_a_row_without_one_of_them_fails_its_session_and_names_part_and_row(tokenizer: ChatTokenizer) -> None:
    answers = {str(session): tokenizer.encode_prompt(text) for session, text in enumerate("787")}
    outcome = await run(tokenizer, answers, judge(in_parts), reward_components=PARTS)
    assert [str(row.key) for row in outcome.rows] == ["s1e0p7_0_0", "s1e0p7_2_0"]
    reason = "reward: MissingComponent: the reward of row 's1e0p7_1_0' has no component 'brief' that is a finite number; it has "
    assert [failure.reason for failure in outcome.failures] == [f"{reason}score, right, note"]


@pytest.mark.parametrize("value", [None, "1", float("nan"), float("inf"), [1.0]])
def test_a_part_is_a_finite_number(value: object) -> None:
    key = TrajectoryKey("s1e0p7", "3", 1)
    with pytest.raises(MissingComponent) as caught:
        components(prompt_group(reward_components=PARTS), key, {"right": True, "brief": value})
    assert isinstance(caught.value, RewardError)
    assert (caught.value.component, caught.value.key, caught.value.known) == ("brief", str(key), ("right", "brief"))


def test_a_group_without_rows_has_a_column_of_no_rows() -> None:
    column = group_rows(prompt_group(reward_components=PARTS), []).fields["reward_components"]
    assert (column.rows, column.trailing) == (0, (2,))
