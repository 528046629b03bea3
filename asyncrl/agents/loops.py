"""The agent loops that a configuration or a row of prompts can name."""

from asyncrl.agents.loop import AgentLoop, SessionContext
from asyncrl.agents.single_turn import SingleTurn
from asyncrl.errors import DataError
from asyncrl.trajectory import Trajectory

AGENT_LOOPS: dict[str, AgentLoop] = {"single_turn_agent": SingleTurn()}
"""By the name in ``agent_name`` and ``actor_rollout_ref.rollout.agent.default_agent_loop``."""


class UnknownLoop:
    """Stands for a name that no loop has: every session fails with the names that there are."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def run(self, session: SessionContext) -> list[Trajectory]:
        """Raises DataError."""
        raise DataError(f"no agent loop is called {self._name!r}; there is {', '.join(AGENT_LOOPS)}")


def loop_named(name: str) -> AgentLoop:
    """The loop of this name."""
    return AGENT_LOOPS.get(name) or UnknownLoop(name)
