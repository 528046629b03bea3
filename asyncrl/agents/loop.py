"""The Protocol of an agent loop: one session of one prompt."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from asyncrl.agents.chat import ChatTokenizer
from asyncrl.trajectory import GenerateOutput, GenerateRequest, PromptGroup, SamplingParams, Trajectory

Generate = Callable[[GenerateRequest], Awaitable[GenerateOutput]]
"""Asks the rollout engines for one answer. It comes whole: of pauses and deaths of engines nothing is seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext:
    """Everything a loop is given for one session."""

    uid: str
    session: str
    """Its number among the sessions of the prompt, or ``g`` for a greedy baseline."""
    prompt_ids: list[int]
    """The encoded prompt, at least one token; shared by the sessions of a group, so not to be changed."""
    sampling: SamplingParams
    """``max_tokens`` bounds the whole response of a trajectory."""
    seed: int
    generate: Generate
    tokenizer: ChatTokenizer
    group: PromptGroup

    def request_id(self, turn: int) -> str:
        """A name of turn ``turn`` (from 0) that no other request in flight has."""
        return f"{self.group.partition_id}/{self.uid}_{self.session}/{turn}"


class AgentLoop(Protocol):
    """How a session is led. An implementation keeps no state between sessions: many run at once on one object."""

    async def run(self, session: SessionContext) -> list[Trajectory]:
        """The outputs of one session in their order, at least one; the last one is judged.

        Sampled token ids go into the trajectory as they are: they are never decoded and encoded again. An exception
        fails the session and nothing else.
        """
        ...
