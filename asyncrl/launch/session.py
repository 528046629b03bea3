"""What a controller is given when everything is started and connected."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from asyncrl.agents.chat import ChatTokenizer
from asyncrl.config.load import Loaded
from asyncrl.data.dataset import PromptStream
from asyncrl.data.prompts import PromptRow
from asyncrl.launch.cluster import Cluster
from asyncrl.launch.run_folder import RunFolder
from asyncrl.runtime.host import Host
from asyncrl.runtime.system import ActorSystem
from asyncrl.training.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Session:
    """The run as rank 0 holds it: roles, inputs and the place for what comes out."""

    loaded: Loaded
    host: Host
    folder: RunFolder
    system: ActorSystem
    cluster: Cluster
    tokenizer: ChatTokenizer
    prompts: PromptStream
    validation_rows: list[PromptRow]
    total_steps: int
    header: list[tuple[str, str]]
    checkpoint: Checkpoint | None
    """What the run goes on from."""


Controller = Callable[[Session], Awaitable[None]]
"""Drives the roles to the end of the run; its return ends all ranks."""


def say(text: str) -> None:
    """One line to the person who started the run."""
    print(text, flush=True)
