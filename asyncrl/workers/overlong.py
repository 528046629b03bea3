"""The penalty for too long answers, in the score of each session of a prompt group."""

import msgspec

from asyncrl.agents.group import Score
from asyncrl.agents.loop import AgentLoop, SessionContext
from asyncrl.algorithms.overlong import overlong_penalty
from asyncrl.trajectory import RewardItem, RewardResult, Trajectory, TrajectoryKey


class Overlong(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """From which length on an answer costs how much."""

    limit: int
    """The longest answer, in response tokens."""
    buffer: int
    """Tokens before the limit over which the penalty grows."""
    factor: float
    """The penalty at the limit."""
    log: bool
    """Keep the penalty among the further values of the reward."""

    def penalise(self, result: RewardResult, length: int) -> RewardResult:
        """The result for an answer of ``length`` tokens; a reward that failed stays so."""
        if result.score is None:
            return result
        penalty = overlong_penalty(length, self.limit, self.buffer, self.factor)
        kept = {"overlong_reward": penalty, "overlong": float(penalty < 0)} if self.log else {}
        return msgspec.structs.replace(result, score=result.score + penalty, extra={**result.extra, **kept})


class OverlongSessions:
    """The sessions of one group and their judge: as before, but for the penalty. The last output is judged, so its length counts."""

    def __init__(self, overlong: Overlong, loop: AgentLoop, score: Score) -> None:
        self._overlong, self._loop, self._score = overlong, loop, score
        self._lengths: dict[str, int] = {}

    async def run(self, session: SessionContext) -> list[Trajectory]:
        """One session."""
        outputs = await self._loop.run(session)
        self._lengths[session.session] = len(outputs[-1].response_ids) if outputs else 0
        return outputs

    async def score(self, items: list[RewardItem]) -> list[RewardResult]:
        """Judge answers of these sessions."""
        results = await self._score(items)
        sessions = [TrajectoryKey.parse(str(item.extra_info["trajectory_key"])).session for item in items]
        return [self._overlong.penalise(result, self._lengths[session]) for result, session in zip(results, sessions, strict=True)]
