"""A child that says something else than it should when it is to be ready."""

import os
import sys

from asyncrl.runtime import Actor, ActorAddress
from asyncrl.runtime.supervisor_messages import framed


class Babbler(Actor):
    """Writes to the pipe that its process inherited."""

    def __init__(self, way: str) -> None:
        self.way = way

    async def on_start(self) -> None:
        identity = self.context.system.address(self.context.name)
        words = {
            "random": os.urandom(64),
            "another": framed(ActorAddress("good", identity.endpoint, "worker", identity.attempt, identity.generation)),
            "twice": b"\x01\x00\x00\x00\xc1" * 2,
        }
        os.write(int(sys.argv[3]), words[self.way])
