"""The built-in rules, chosen by the data source of a prompt."""

from collections.abc import Callable, Iterable
from typing import Any

from asyncrl.errors import ConfigError, RewardError
from asyncrl.rewards.rules.exact import exact_match

Rule = Callable[[str, str, Any, dict[str, Any] | None], dict[str, float]]

DEFAULT_RULES: dict[str, Rule] = {"exact_match": exact_match}
"""By data source: a rule judges the source of its name and all sources ``name/...``."""


def rule_of(data_source: str) -> Rule | None:
    """The rule for a data source, None if there is none.

    >>> rule_of("exact_match/capitals") is exact_match, rule_of("gsm9k")
    (True, None)
    """
    return DEFAULT_RULES.get(data_source.split("/", 1)[0])


def default_compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> dict[str, float]:
    """Judge by the rule of ``data_source``. Raises RewardError when there is none."""
    rule = rule_of(data_source)
    if rule is None:
        raise RewardError(_no_rule(data_source))
    return rule(data_source, solution_str, ground_truth, extra_info)


def check_sources(data_sources: Iterable[str]) -> None:
    """Raise ConfigError for the first data source without a rule, so that a run without a reward does not start."""
    for data_source in data_sources:
        if rule_of(data_source) is None:
            raise ConfigError("reward.custom_reward_function.path", None, _no_rule(data_source))


def _no_rule(data_source: str) -> str:
    return (
        f"no built-in rule judges data_source {data_source!r} (known: {', '.join(DEFAULT_RULES)}); "
        "give a reward function in reward.custom_reward_function.path"
    )
