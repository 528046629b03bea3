"""Roles as actors: what runs on a rank (policy, reference, rollout) and beside it (agent, reward)."""
