"""Rollout engines: they turn token ids into sampled answers and know neither queue nor trainer."""
