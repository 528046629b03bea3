"""Rewards: from an answer to a score, or to the reason why there is none. No torch."""
