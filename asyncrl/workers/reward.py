"""A CPU process that runs the user's reward function."""

from asyncrl.rewards.load import load_reward
from asyncrl.rewards.pool import InlinePool, WorkerPool
from asyncrl.rewards.reward import score_all
from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.curve import CONTROLLER
from asyncrl.trajectory import RewardItem, RewardResult


class RewardWorker(Actor):
    """Scores answers. A reward that raises or hangs gives an error for its answer, and the others go on."""

    concurrency = 0
    process_role = "reward"

    def __init__(
        self, path: str | None, name: str, reward_kwargs: dict[str, object], threads: int, seconds: float, inline: bool = False
    ) -> None:
        self._pool = InlinePool() if inline else WorkerPool(threads, seconds)
        self._reward = load_reward(path, name, self._pool, reward_kwargs)

    async def on_stop(self) -> None:
        self._pool.close()

    @endpoint(roles=(CONTROLLER, "agent"))
    async def score(self, items: list[RewardItem]) -> list[RewardResult]:
        """One result per item, in order: a score, or the reason why there is none."""
        return await score_all(self._reward, items)
