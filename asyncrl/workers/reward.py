"""A CPU process that runs the user's reward function."""

import contextlib
from collections.abc import Iterator

from asyncrl.rewards.load import load_reward
from asyncrl.rewards.pool import InlinePool, WorkerPool
from asyncrl.rewards.reward import Reward, score_all
from asyncrl.runtime.actor import CURRENT_CALL, Actor, CurrentCall, endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.trajectory import RewardItem, RewardResult
from asyncrl.workers.frozen import FrozenExit


class ReportedReward:
    """A reward that marks progress of every waiting call whenever it is done with any answer, of whatever call.

    Calls queue behind one another for the threads: one whose answers wait is not silent while the others' are judged.
    """

    def __init__(self, reward: Reward) -> None:
        self._reward = reward
        self._calls: list[CurrentCall] = []

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """The current call waits for answers meanwhile."""
        call = CURRENT_CALL.get()
        calls = [] if call is None else [call]
        self._calls += calls
        try:
            yield
        finally:
            for each in calls:
                self._calls.remove(each)

    async def score(self, item: RewardItem) -> RewardResult:
        """See ``Reward``."""
        try:
            return await self._reward.score(item)
        finally:
            for call in self._calls:
                call.progress()


class RewardWorker(Actor):
    """Scores answers. A reward that raises or hangs gives an error for its answer, and the others go on.

    One that hangs with the interpreter lock (a regular expression that backtracks for ever, a long call into C) leaves no
    thread to notice it. With a ``margin`` the process ends ``seconds + margin`` after the event loop last ran, and prints
    all stacks; for a process that is this actor's alone, which is then started again. ``seconds`` bounds one call.
    """

    concurrency = 0
    process_role = "reward"

    def __init__(
        self,
        path: str | None,
        name: str,
        reward_kwargs: dict[str, object],
        threads: int,
        seconds: float,
        inline: bool = False,
        margin: float | None = None,
    ) -> None:
        self._pool = InlinePool() if inline else WorkerPool(threads, seconds)
        self._reward = ReportedReward(load_reward(path, name, self._pool, reward_kwargs))
        self._frozen = None if margin is None else FrozenExit(seconds, margin)

    async def on_start(self) -> None:
        if self._frozen is not None:
            self._frozen.start()

    async def on_stop(self) -> None:
        if self._frozen is not None:
            self._frozen.cancel()
        self._pool.close()

    @endpoint(roles=(CONTROLLER, "agent"))
    async def score(self, items: list[RewardItem]) -> list[RewardResult]:
        """One result per item, in order: a score, or the reason why there is none."""
        with self._reward.reporting():
            return await score_all(self._reward, items)
