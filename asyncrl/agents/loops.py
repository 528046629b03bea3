"""The agent loops that a configuration or a row of prompts can name."""

from asyncrl.agents.loop import AgentLoop
from asyncrl.agents.single_turn import SingleTurn

AGENT_LOOPS: dict[str, AgentLoop] = {"single_turn_agent": SingleTurn()}
"""By the name in ``agent_name`` and ``actor_rollout_ref.rollout.agent.default_agent_loop``."""
