"""``reward.*``: how a response is scored."""

import msgspec

from asyncrl.config.schema.section import Section, known, refuse
from asyncrl.config.schema.types import Count, Name, NonNegative, Positive, Table


class CustomRewardFunction(Section, frozen=True, kw_only=True):
    """A function of the user."""

    path: Name | None = None
    """Python file of the function, or ``pkg://PACKAGE/FILE``; null = the rule that goes with the row's data source."""
    name: Name = "compute_score"
    """Name of the function in that file."""
    reward_kwargs: Table = msgspec.field(default_factory=dict)
    """Fixed arguments for it."""


class OverlongBuffer(Section, frozen=True, kw_only=True):
    """What an answer that comes close to the limit costs, as in DAPO."""

    enable: bool = False
    """Add 0 to the score of an answer of up to ``max_resp_len - len`` tokens, and beyond it less and less, down to
    ``-penalty_factor`` at ``max_resp_len``."""
    len: int = 0
    """Tokens before the limit over which the penalty grows; at least 1 where it is enabled."""
    penalty_factor: NonNegative = 1.0
    """The penalty at the limit."""
    log: bool = False
    """Keep the penalty as ``overlong_reward`` and whether there was one as ``overlong`` beside what the reward function returned."""

    def __post_init__(self) -> None:
        if self.enable and self.len < 1:
            raise refuse("len", self.len, "allowed: at least 1, as enable=true spreads the penalty over so many tokens")


class RewardKwargs(Section, frozen=True, kw_only=True):
    """What happens to a score after the reward function."""

    overlong_buffer_cfg: OverlongBuffer = msgspec.field(default_factory=OverlongBuffer)
    """The penalty for too long answers."""
    max_resp_len: Count | None = None
    """The limit that it counts from; null = ``data.max_response_length``."""

    @property
    def limit(self) -> int:
        """The limit in force."""
        return known(self.max_resp_len, "reward.reward_kwargs.max_resp_len")


class Reward(Section, frozen=True, kw_only=True):
    """The reward workers and what they call."""

    num_workers: Count = 8
    """Reward worker processes."""
    custom_reward_function: CustomRewardFunction = msgspec.field(default_factory=CustomRewardFunction)
    """The user's function."""
    reward_kwargs: RewardKwargs = msgspec.field(default_factory=RewardKwargs)
    """What happens to a score after that."""
    timeout: Positive = 300.0
    """Seconds after which a reward counts as failed, and with it its session."""
