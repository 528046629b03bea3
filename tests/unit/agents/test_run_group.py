"""A prompt group: its sessions, their rewards, their failures, and the rows it leaves."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from asyncrl.agents.chat import ChatTokenizer
from asyncrl.agents.columns import SUCCESS, WRITES, group_rows, token_scores
from asyncrl.agents.group import GroupOutcome, Score, SessionFailure, run_group
from asyncrl.agents.loop import AgentLoop, Generate, SessionContext
from asyncrl.agents.loops import AGENT_LOOPS
from asyncrl.agents.single_turn import SingleTurn
from asyncrl.trajectory import (
    GenerateOutput,
    GenerateRequest,
    PromptGroup,
    RewardItem,
    RewardResult,
    SamplingParams,
    Status,
    StopReason,
    Trajectory,
)

Answers = dict[str, list[int]]


def prompt_group(**changes: Any) -> PromptGroup:
    group = PromptGroup(
        uid="s1e0p7",
        partition_id="train",
        prompt="3+4=",
        data_source="add1",
        ground_truth="7",
        extra_info={"index": 7},
        sessions=3,
        sampling=SamplingParams(max_tokens=4),
        seed=11,
        lease=1,
        step=5,
    )
    return msgspec.structs.replace(group, **changes)


def output(request: GenerateRequest, ids: list[int], stop_reason: StopReason = StopReason.STOP) -> GenerateOutput:
    return GenerateOutput(
        request_id=request.request_id,
        token_ids=ids,
        log_probs=[-0.5 * (place + 1) for place in range(len(ids))],
        versions=[4] * len(ids),
        stop_reason=stop_reason,
    )


def engine(answers: Answers, seen: list[GenerateRequest] | None = None) -> Generate:
    """Answers by session; a session without an answer raises."""

    async def generate(request: GenerateRequest) -> GenerateOutput:
        if seen is not None:
            seen.append(request)
        await asyncio.sleep(0)
        return output(request, answers[request.session])

    return generate


def judge(function: Callable[[RewardItem], RewardResult], seen: list[RewardItem] | None = None) -> Score:
    async def score(items: list[RewardItem]) -> list[RewardResult]:
        if seen is not None:
            seen.extend(items)
        return [function(item) for item in items]

    return score


def right(item: RewardItem) -> RewardResult:
    value = float(item.solution_str == item.ground_truth)
    return RewardResult(score=value, extra={"acc": value})


def failing(item: RewardItem) -> RewardResult:
    return RewardResult(error="timeout after 1 s") if item.solution_str == "8" else right(item)


async def run(tokenizer: ChatTokenizer, answers: Answers, score: Score, loop: AgentLoop | None = None, **changes: Any) -> GroupOutcome:
    return await run_group(prompt_group(**changes), loop or SingleTurn(), score, generate=engine(answers), tokenizer=tokenizer)


def encode(tokenizer: ChatTokenizer, *texts: str) -> Answers:
    return {str(session): tokenizer.encode_prompt(text) for session, text in enumerate(texts)}


async def test_sessions_are_asked_with_prompt_seed_and_a_name_of_their_own(tokenizer: ChatTokenizer) -> None:
    seen: list[GenerateRequest] = []
    answers = encode(tokenizer, "7", "8", "7")
    await run_group(prompt_group(), SingleTurn(), judge(right), generate=engine(answers, seen), tokenizer=tokenizer)
    assert [(request.uid, request.session, request.seed, request.drawn) for request in seen] == [
        ("s1e0p7", "0", 11, 0),
        ("s1e0p7", "1", 11, 0),
        ("s1e0p7", "2", 11, 0),
    ]
    assert len({request.request_id for request in seen}) == 3
    assert {tuple(request.prompt_ids) for request in seen} == {tuple(tokenizer.encode_prompt("3+4="))}


async def test_a_finished_group_has_a_scored_row_for_each_session(tokenizer: ChatTokenizer) -> None:
    items: list[RewardItem] = []
    outcome = await run(tokenizer, encode(tokenizer, "7", "8", "7"), judge(right, items))
    assert outcome.status is Status.FINISHED
    assert [str(row.key) for row in outcome.rows] == ["s1e0p7_0_0", "s1e0p7_1_0", "s1e0p7_2_0"]
    assert [(row.score, row.extra) for row in outcome.rows] == [(1.0, {"acc": 1.0}), (0.0, {"acc": 0.0}), (1.0, {"acc": 1.0})]
    assert [item.extra_info for item in items] == [
        {"index": 7, "num_turns": 2, "trajectory_key": f"s1e0p7_{session}_0"} for session in range(3)
    ]
    assert items[1] == RewardItem(data_source="add1", solution_str="8", ground_truth="7", extra_info=items[1].extra_info)


async def test_a_session_that_raises_fails_alone(tokenizer: ChatTokenizer) -> None:
    answers = encode(tokenizer, "7", "8", "7")
    del answers["1"]
    outcome = await run(tokenizer, answers, judge(right))
    assert outcome.status is Status.FAILURE
    assert [row.key.session for row in outcome.rows] == ["0", "2"]
    assert outcome.failures == [SessionFailure(session="1", reason="KeyError: '1'")]


async def test_a_reward_that_fails_fails_its_session_and_is_no_number(tokenizer: ChatTokenizer) -> None:
    outcome = await run(tokenizer, encode(tokenizer, "7", "8", "9"), judge(failing))
    assert [(row.key.session, row.score) for row in outcome.rows] == [("0", 1.0), ("2", 0.0)]
    assert outcome.failures == [SessionFailure(session="1", reason="reward: timeout after 1 s")]


@pytest.mark.parametrize("score", [None, float("nan"), float("inf")])
async def test_a_result_without_a_finite_score_is_a_failure(tokenizer: ChatTokenizer, score: float | None) -> None:
    outcome = await run(tokenizer, encode(tokenizer, "7", "8", "9"), judge(lambda item: RewardResult(score=score)))
    assert outcome.rows == []
    assert [failure.reason for failure in outcome.failures] == [f"reward: no finite score: {score}"] * 3


async def test_when_judging_itself_raises_every_judged_session_fails(tokenizer: ChatTokenizer) -> None:
    async def score(items: list[RewardItem]) -> list[RewardResult]:
        raise ConnectionError("the reward worker is gone")

    answers = encode(tokenizer, "7", "8", "9")
    del answers["0"]
    outcome = await run(tokenizer, answers, score)
    assert [failure.reason for failure in outcome.failures] == [
        "KeyError: '0'",
        "reward: ConnectionError: the reward worker is gone",
        "reward: ConnectionError: the reward worker is gone",
    ]


async def test_too_few_results_are_noticed(tokenizer: ChatTokenizer) -> None:
    async def score(items: list[RewardItem]) -> list[RewardResult]:
        return [RewardResult(score=1.0)]

    outcome = await run(tokenizer, encode(tokenizer, "7", "8", "9"), score)
    assert {failure.reason for failure in outcome.failures} == {"reward: RewardError: 1 results for 3 answers"}


async def test_a_prompt_that_cannot_be_encoded_fails_every_session(tokenizer: ChatTokenizer) -> None:
    outcome = await run(tokenizer, {}, judge(right), prompt=[{"role": "robot", "content": "hi"}])
    assert [failure.session for failure in outcome.failures] == ["0", "1", "2"]
    assert "no role robot" in outcome.failures[0].reason


async def test_an_aborted_answer_fails_its_session(tokenizer: ChatTokenizer) -> None:
    async def generate(request: GenerateRequest) -> GenerateOutput:
        return output(request, [9, 9], StopReason.ABORT if request.session == "2" else StopReason.STOP)

    outcome = await run_group(prompt_group(), SingleTurn(), judge(right), generate=generate, tokenizer=tokenizer)
    assert outcome.failures == [
        SessionFailure(session="2", reason="GenerationAborted: train/s1e0p7_2/0 was aborted after 2 tokens"),
    ]


async def test_a_cancel_ends_all_sessions_and_passes(tokenizer: ChatTokenizer) -> None:
    running: list[str] = []
    all_run = asyncio.Event()

    async def generate(request: GenerateRequest) -> GenerateOutput:
        running.append(request.session)
        if len(running) == 3:
            all_run.set()
        try:
            await asyncio.Event().wait()
        finally:
            running.remove(request.session)
        return output(request, [])

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(run_group(prompt_group(), SingleTurn(), judge(right), generate=generate, tokenizer=tokenizer))
        await all_run.wait()
        task.cancel()
    assert task.cancelled()
    assert running == []


async def test_sessions_run_at_once(tokenizer: ChatTokenizer) -> None:
    meeting = asyncio.Barrier(3)

    async def generate(request: GenerateRequest) -> GenerateOutput:
        await meeting.wait()
        return output(request, [9])

    outcome = await run_group(prompt_group(), SingleTurn(), judge(right), generate=generate, tokenizer=tokenizer)
    assert len(outcome.rows) == 3


class TwoOutputs:
    """Session 2 has its context reset once: two outputs."""

    async def run(self, session: SessionContext) -> list[Trajectory]:
        first = await SingleTurn().run(session)
        if session.session != "2":
            return first
        tool = Trajectory(
            prompt_ids=[5, 6],
            response_ids=[9, 8, 7],
            response_mask=[1, 0, 1],
            log_probs=[-1.0, 0.0, -2.0],
            versions=[3, -1, 4],
            num_turns=4,
            stop_reason=StopReason.LENGTH,
        )
        return [*first, tool]


async def test_only_the_last_output_of_a_session_is_judged_and_its_score_goes_to_the_earlier_ones(tokenizer: ChatTokenizer) -> None:
    items: list[RewardItem] = []

    def by_turns(item: RewardItem) -> RewardResult:
        return RewardResult(score=float(item.extra_info["num_turns"]), extra={"text": item.solution_str})

    outcome = await run(tokenizer, encode(tokenizer, "7", "8", "7"), judge(by_turns, items), TwoOutputs())
    assert [(str(row.key), row.score) for row in outcome.rows] == [
        ("s1e0p7_0_0", 2.0),
        ("s1e0p7_1_0", 2.0),
        ("s1e0p7_2_0", 4.0),
        ("s1e0p7_2_1", 4.0),
    ]
    assert [item.extra_info["trajectory_key"] for item in items] == ["s1e0p7_0_0", "s1e0p7_1_0", "s1e0p7_2_1"]
    assert items[2].solution_str == tokenizer.decode([9, 8, 7])


class Bad:
    """Sessions that return what cannot be a row."""

    async def run(self, session: SessionContext) -> list[Trajectory]:
        (good,) = await SingleTurn().run(session)
        changed: list[list[Trajectory]] = [
            [],
            [msgspec.structs.replace(good, log_probs=[])],
            [good, msgspec.structs.replace(good, prompt_ids=[])],
            [msgspec.structs.replace(good, response_ids=[1] * 5, response_mask=[1] * 5, log_probs=[0.0] * 5, versions=[0] * 5)],
        ]
        return changed[int(session.session)]


async def test_outputs_that_cannot_be_rows_fail_their_session(tokenizer: ChatTokenizer) -> None:
    outcome = await run(tokenizer, encode(tokenizer, "7", "8", "7", "7"), judge(right), Bad(), sessions=4)
    assert [failure.reason for failure in outcome.failures] == [
        "DataError: the agent loop returned no output",
        "DataError: output 0: response_ids, response_mask, log_probs and versions have lengths [1, 1, 0, 1], expected equal ones",
        "DataError: output 1: prompt_ids is empty",
        "DataError: output 0: 5 response tokens, at most 4 are allowed",
    ]


async def test_sampled_ids_are_kept_even_when_their_text_encodes_to_others(tokenizer: ChatTokenizer) -> None:
    one = tokenizer.encode_prompt("ab")
    two = tokenizer.encode_prompt("a") + tokenizer.encode_prompt("b")
    assert (len(one), len(two), tokenizer.decode(two)) == (1, 2, "ab")
    outcome = await run(tokenizer, {"0": two, "1": one, "2": two}, judge(right))
    columns = group_rows(prompt_group(), outcome.rows).fields
    assert columns["responses"].to_list() == [two, one, two]
    assert columns["rollout_log_probs"].to_list() == [[-0.5, -1.0], [-0.5], [-0.5, -1.0]]


async def test_the_columns_and_tags_of_a_group(tokenizer: ChatTokenizer) -> None:
    answers = encode(tokenizer, "7", "78", "7")
    outcome = await run(tokenizer, answers, judge(right), TwoOutputs())
    rows = group_rows(prompt_group(), outcome.rows)
    prompt = tokenizer.encode_prompt("3+4=")
    assert tuple(rows.fields) == WRITES
    assert {name: column.dtype for name, column in rows.fields.items()} == {
        "prompts": "int64",
        "responses": "int64",
        "response_mask": "int64",
        "rollout_log_probs": "float32",
        "rollout_versions": "int32",
        "rm_scores": "float32",
        "reward_extra_info": "json",
    }
    assert rows.keys == ["s1e0p7_0_0", "s1e0p7_1_0", "s1e0p7_2_0", "s1e0p7_2_1"]
    assert rows.fields["prompts"].to_list() == [prompt, prompt, prompt, [5, 6]]
    assert rows.fields["responses"].to_list() == [answers["0"], answers["1"], answers["2"], [9, 8, 7]]
    assert rows.fields["response_mask"].to_list() == [[1], [1, 1], [1], [1, 0, 1]]
    assert rows.fields["rollout_log_probs"].to_list() == [[-0.5], [-0.5, -1.0], [-0.5], [-1.0, 0.0, -2.0]]
    assert rows.fields["rollout_versions"].to_list() == [[4], [4, 4], [4], [3, -1, 4]]
    assert rows.fields["rm_scores"].to_list() == [[1.0], [0.0, 0.0], [0.0], [0.0, 0.0, 0.0]]
    assert rows.fields["reward_extra_info"].to_list() == [{"acc": 1.0}, {"acc": 0.0}, {"acc": 0.0}, {"acc": 0.0}]
    assert rows.tags[3] == {
        "status": SUCCESS,
        "uid": "s1e0p7",
        "session": "2",
        "index": 1,
        "prompt_len": 2,
        "response_len": 3,
        "seq_len": 5,
        "trainable_len": 2,
        "global_steps": 5,
        "min_global_steps": 3,
        "max_global_steps": 4,
        "score": 0.0,
        "num_turns": 4,
        "stop_reason": "length",
    }
    msgspec.msgpack.encode(rows.tags)


@pytest.mark.parametrize("others", ["7", ""])
async def test_an_answer_without_tokens_is_a_row_whose_score_is_in_the_tag(tokenizer: ChatTokenizer, others: str) -> None:
    other = tokenizer.encode_prompt(others) if others else []
    outcome = await run(tokenizer, {"0": other, "1": [], "2": other}, judge(lambda item: RewardResult(score=0.25)))
    rows = group_rows(prompt_group(), outcome.rows)
    assert rows.fields["responses"].to_list() == [other, [], other]
    assert rows.fields["rm_scores"].to_list()[1] == []
    assert [column.dtype for column in rows.fields.values()][:6] == ["int64", "int64", "int64", "float32", "int32", "float32"]
    tag = rows.tags[1]
    assert (tag["score"], tag["response_len"], tag["seq_len"], tag["min_global_steps"], tag["max_global_steps"]) == (0.25, 0, 4, 4, 4)


def test_a_group_without_rows_has_no_keys() -> None:
    rows = group_rows(prompt_group(), [])
    assert (rows.keys, rows.tags) == ([], [])
    assert {column.rows for column in rows.fields.values()} == {0}


def test_the_score_stands_at_the_last_sampled_token() -> None:
    assert token_scores(0.5, [1, 0, 1]) == [0.0, 0.0, 0.5]
    assert token_scores(0.5, [1, 1, 0]) == [0.0, 0.5, 0.0]
    assert token_scores(0.5, [1]) == [0.5]
    assert token_scores(0.5, [0, 0]) == [0.0, 0.5]
    assert token_scores(0.5, []) == []


def test_the_single_turn_loop_is_found_by_verls_name() -> None:
    assert isinstance(AGENT_LOOPS["single_turn_agent"], SingleTurn)
    assert prompt_group().agent_name in AGENT_LOOPS
