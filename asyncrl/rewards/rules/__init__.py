"""Built-in rules that judge an answer by its text."""

from asyncrl.rewards.rules.default import DEFAULT_RULES, check_sources, default_compute_score

__all__ = ["DEFAULT_RULES", "check_sources", "default_compute_score"]
