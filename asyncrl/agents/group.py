"""One prompt group run to its end: its sessions at once, their rewards, and what became of each."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from asyncrl.agents.chat import ChatTokenizer
from asyncrl.agents.loop import AgentLoop, Generate, SessionContext
from asyncrl.agents.output import checked_output
from asyncrl.errors import DataError, MissingComponent, RewardError
from asyncrl.trajectory import (
    GREEDY_SESSION,
    PolicyVersion,
    PromptGroup,
    RewardItem,
    RewardResult,
    Status,
    Trajectory,
    TrajectoryKey,
)

Score = Callable[[list[RewardItem]], Awaitable[list[RewardResult]]]
"""Judges some answers; one result for each, in their order."""
Ended = tuple[list[Trajectory], RewardItem]
"""The outputs of a session, and the last one as it is judged."""


class ScoredTrajectory(msgspec.Struct, frozen=True, kw_only=True):
    """One row: an output of a session with the score of that session's last output."""

    key: TrajectoryKey
    trajectory: Trajectory
    score: float
    extra: dict[str, object]
    """Further values of the reward function."""
    components: list[float] = []
    """The parts of the reward that the group asks for, in its order."""


class SessionFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A session that leaves no row, and why."""

    session: str
    reason: str


class GroupOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a group became: every session is in ``rows`` (with one or more outputs) or in ``failures``."""

    uid: str
    rows: list[ScoredTrajectory]
    """By session, then by index."""
    failures: list[SessionFailure]
    metric: list[float] = []
    """What a filter of groups looks at, of each session in order that has rows; a greedy baseline has none."""

    @property
    def oldest_version(self) -> PolicyVersion | None:
        """The oldest version that drew a trainable token; None when there is no such token. A greedy baseline is not trained."""
        trained = [row.trajectory for row in self.rows if row.key.session != GREEDY_SESSION]
        pairs = [pair for output in trained for pair in zip(output.versions, output.response_mask, strict=True)]
        return min((version for version, mask in pairs if mask), default=None)

    @property
    def status(self) -> Status:
        """``failure`` as soon as one session failed."""
        return Status.FAILURE if self.failures else Status.FINISHED


async def run_group(group: PromptGroup, loop: AgentLoop, score: Score, *, generate: Generate, tokenizer: ChatTokenizer) -> GroupOutcome:
    """Run the sessions of ``group`` at once, then judge the last output of each in one call of ``score``.

    Whatever a session or its reward raises becomes a failed session with a reason; cancelling passes through, and ends
    the sessions.
    """
    ended, failures = await _run_sessions(group, loop, generate, tokenizer)
    rows: list[ScoredTrajectory] = []
    metric: list[float] = []
    results = await _judge(score, [item for _, item in ended.values()])
    for (session, (outputs, _)), result in zip(ended.items(), results, strict=True):
        if result.error or result.score is None or not math.isfinite(result.score):
            failures[session] = f"reward: {result.error or f'no finite score: {result.score}'}"
            continue
        key, values = TrajectoryKey(group.uid, session, len(outputs) - 1), {"score": result.score, **result.extra}
        try:
            parts = components(group, key, values)
            if session != GREEDY_SESSION:
                metric.append(_number(group.filter_metric, key, values) if group.filter_metric else result.score)
        except MissingComponent as error:
            failures[session] = f"reward: {describe(error)}"
            continue
        rows += [
            ScoredTrajectory(
                key=TrajectoryKey(group.uid, session, index), trajectory=output, score=result.score, extra=result.extra, components=parts
            )
            for index, output in enumerate(outputs)
        ]
    failed = [SessionFailure(session=session, reason=failures[session]) for session in group.session_names if session in failures]
    return GroupOutcome(uid=group.uid, rows=rows, failures=failed, metric=metric)


async def _run_sessions(
    group: PromptGroup, loop: AgentLoop, generate: Generate, tokenizer: ChatTokenizer
) -> tuple[dict[str, Ended], dict[str, str]]:
    """What became of each session, and failure reasons, in session order."""
    sessions = group.session_names
    try:
        prompt_ids = tokenizer.encode_prompt(group.prompt)
    except DataError as error:
        return {}, dict.fromkeys(sessions, describe(error))
    contexts = [
        SessionContext(
            uid=group.uid,
            session=session,
            prompt_ids=prompt_ids,
            sampling=group.sampling_of(session),
            seed=group.seed,
            generate=generate,
            tokenizer=tokenizer,
            group=group,
        )
        for session in sessions
    ]
    # With return_exceptions no session ends another; a cancel from outside still reaches all of them.
    ended = await asyncio.gather(*(_run_session(loop, context) for context in contexts), return_exceptions=True)
    outputs: dict[str, Ended] = {}
    failures: dict[str, str] = {}
    for session, result in zip(sessions, ended, strict=True):
        if isinstance(result, BaseException):
            failures[session] = describe(result)
        else:
            outputs[session] = result
    return outputs, failures


async def _run_session(loop: AgentLoop, context: SessionContext) -> Ended:
    """One session to its end. Whatever is wrong with its outputs is found here, where it fails no other session."""
    returned = enumerate(await loop.run(context))
    outputs = [checked_output(output, f"output {index}", context.sampling.max_tokens) for index, output in returned]
    if not outputs:
        raise DataError("the agent loop returned no output")
    return outputs, _reward_item(context.group, context.session, outputs, context.tokenizer)


def _reward_item(group: PromptGroup, session: str, outputs: Sequence[Trajectory], tokenizer: ChatTokenizer) -> RewardItem:
    """The last output of a session; ``extra_info`` also names the trajectory and its number of turns."""
    last = len(outputs) - 1
    named = {"num_turns": outputs[last].num_turns, "trajectory_key": str(TrajectoryKey(group.uid, session, last))}
    return RewardItem(
        data_source=group.data_source,
        solution_str=tokenizer.decode(outputs[last].response_ids),
        ground_truth=group.ground_truth,
        extra_info={**group.extra_info, **named},
    )


def components(group: PromptGroup, key: TrajectoryKey, extra: Mapping[str, object]) -> list[float]:
    """The parts of the reward that ``group`` asks for, in its order. Raises MissingComponent for one that is no finite number."""
    return [_number(name, key, extra) for name in group.reward_components]


def _number(name: str, key: TrajectoryKey, extra: Mapping[str, object]) -> float:
    value = extra.get(name)
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise MissingComponent(name, str(key), tuple(extra))
    return float(value)


async def _judge(score: Score, items: list[RewardItem]) -> list[RewardResult]:
    """One result an item; when the judging itself fails, that is the result of each."""
    if not items:
        return []
    try:
        results = await score(items)
        if len(results) != len(items):
            raise RewardError(f"{len(results)} results for {len(items)} answers")
    except Exception as error:  # of any reward, in any process: a failed reward is data
        return [RewardResult(error=describe(error))] * len(items)
    return results


def describe(error: BaseException) -> str:
    """An exception in one line: its class and its text.

    >>> describe(ValueError("no such tool"))
    'ValueError: no such tool'
    """
    # What has no UTF-8 form could not travel.
    text = str(error).encode(errors="backslashreplace").decode()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
