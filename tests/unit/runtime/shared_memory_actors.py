"""Actors that keep, return and make large buffers; importable by child processes."""

import os

from asyncrl.runtime import Actor, ActorAddress, endpoint
from asyncrl.runtime.segment_pool import PoolStats
from tests.unit.runtime.runtime_actors import Block

MIB = 1 << 20


class Keeper(Actor):
    """Keeps what it is given until it is told otherwise."""

    def __init__(self) -> None:
        self.kept: dict[str, Block] = {}

    @endpoint
    async def echo(self, block: Block) -> Block:
        return block

    @endpoint
    async def keep(self, block: Block) -> int:
        self.kept[block.name] = block
        return os.getpid()

    @endpoint
    async def adopt(self, name: str) -> bool:
        return self.context.system.shared_memory.adopt(self.kept[name].data)

    @endpoint
    async def show(self, name: str) -> Block:
        """What was kept, which stays."""
        return self.kept[name]

    @endpoint
    async def drop(self, name: str) -> None:
        del self.kept[name]

    @endpoint
    async def make(self, size: int, value: int) -> Block:
        """A buffer that is made where it is sent from."""
        buffer = self.context.system.shared_memory.allocate(size)
        buffer[:] = bytes([value]) * size
        return Block("made", buffer)

    @endpoint
    async def fetch(self, address: ActorAddress, name: str) -> bool:
        """Keeps what another keeper shows."""
        self.kept[name] = await self.context.system.ref(address, Keeper).call(Keeper.show, name)
        return len(self.kept[name].data) > 0

    @endpoint
    async def stats(self) -> PoolStats:
        return self.context.system.shared_memory.stats()

    @endpoint
    def resident(self) -> int:
        """Bytes of this process that are in memory."""
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    @endpoint
    async def pid(self) -> int:
        return os.getpid()
