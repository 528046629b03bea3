"""What a controller is given when everything is started and connected, and the controller that trains."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from asyncrl.agents.chat import ChatTokenizer
from asyncrl.config.load import Loaded
from asyncrl.data.dataset import PromptStream
from asyncrl.data.prompts import PromptRow
from asyncrl.launch.cluster import Cluster
from asyncrl.launch.controller import build_trainer, open_trackers
from asyncrl.launch.run_folder import RunFolder
from asyncrl.observe.console import ConsoleTracker
from asyncrl.runtime.host import Host


@dataclass(frozen=True, slots=True)
class Session:
    """The run as rank 0 holds it: roles, inputs and the place for what comes out."""

    loaded: Loaded
    host: Host
    folder: RunFolder
    cluster: Cluster
    tokenizer: ChatTokenizer
    prompts: PromptStream
    validation_rows: list[PromptRow]
    total_steps: int
    header: list[tuple[str, str]]


Controller = Callable[[Session], Awaitable[None]]
"""Drives the roles to the end of the run; its return ends all ranks."""


async def train(session: Session) -> None:
    """Run the loop with the trackers of the configuration."""
    console = ConsoleTracker(session.total_steps)
    console.header(f"asyncrl: {session.loaded.name}", session.header)
    config = session.loaded.config
    trackers = open_trackers(config, session.folder, console, session.tokenizer, say)
    trainer = build_trainer(config, session.cluster, session.host, trackers, session.prompts, session.validation_rows, say)
    try:
        await trainer.run()
    finally:
        trackers.finish()


def say(text: str) -> None:
    """One line to the person who started the run."""
    print(text, flush=True)
