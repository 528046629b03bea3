"""``reward.*``: how a response is scored."""

import msgspec

from asyncrl.config.schema.section import Section
from asyncrl.config.schema.types import Count, Name, Positive, Table


class CustomRewardFunction(Section, frozen=True, kw_only=True):
    """A function of the user."""

    path: Name | None = None
    """Python file of the function, or ``pkg://PACKAGE/FILE``; null = the rule that goes with the row's data source."""
    name: Name = "compute_score"
    """Name of the function in that file."""
    reward_kwargs: Table = msgspec.field(default_factory=dict)
    """Fixed arguments for it."""


class Reward(Section, frozen=True, kw_only=True):
    """The reward workers and what they call."""

    num_workers: Count = 8
    """Reward worker processes."""
    custom_reward_function: CustomRewardFunction = msgspec.field(default_factory=CustomRewardFunction)
    """The user's function."""
    timeout: Positive = 300.0
    """Seconds after which a reward counts as failed, and with it its session."""
