"""Actors that hang in the ways of the reliability page, importable by child processes."""

import asyncio
import os
import threading
import time

import zmq

from asyncrl.errors import ActorError
from asyncrl.runtime import Actor, ActorAddress, endpoint
from tests.faults.fault_actors import Worker


class Hanging(Actor):
    """Each endpoint is one mistake; the others are still served."""

    concurrency = 0

    @endpoint
    async def echo(self, value: int) -> int:
        return value

    @endpoint
    async def fill_queue(self, seconds: float) -> str:
        """A blocking send into a full queue, in the event loop."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with context.socket(zmq.PUSH) as push:
            push.setsockopt(zmq.SNDHWM, 1)
            push.setsockopt(zmq.SNDTIMEO, int(seconds * 1000))
            push.bind("inproc://nobody")
            try:
                push.send(b"into the void")
            except zmq.Again:
                found = "full"
            else:
                found = "sent"
        context.term()
        return found

    @endpoint
    async def compute(self, seconds: float) -> float:
        """Python code that does not let the loop turn."""
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            sum(range(1000))
        return time.perf_counter() - began

    @endpoint
    async def hold_the_lock(self, seconds: float) -> float:
        """One call of C code that lets no other thread run Python, of at least so many seconds."""
        size = 100_000
        while True:
            began = time.perf_counter()
            str(7**size).count("7") if size < 1000 else 7**size
            if (took := time.perf_counter() - began) >= seconds:
                return took
            size *= 2

    @endpoint
    async def starve_own_call(self, address: ActorAddress, deadline: float, seconds: float) -> int:
        """Calls another process and then computes until long after the deadline; the answer has come meanwhile."""
        worker = self.context.system.ref(address, Worker)
        await worker.call(Worker.echo, 0)
        call = asyncio.ensure_future(worker.with_deadline(deadline).call(Worker.echo, 7))
        await asyncio.sleep(0)
        await self.compute(seconds)
        return await call

    @endpoint
    async def lose_a_task(self) -> None:
        """A task that nobody waits for, and that fails."""
        asyncio.get_running_loop().create_task(fails_unseen())

    @endpoint
    async def fork_and_call(self, address: ActorAddress) -> str:
        """What a copy of this process hears when it uses its connections."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, asyncio.run(self._call_in_copy(address)).encode())
            os._exit(0)
        os.close(writer)
        said = await asyncio.to_thread(os.read, reader, 65536)
        await asyncio.to_thread(os.waitpid, pid, 0)
        os.close(reader)
        return said.decode()

    async def _call_in_copy(self, address: ActorAddress) -> str:
        worker = self.context.system.ref(address, Worker)
        try:
            async with asyncio.timeout(20):
                await worker.call(Worker.echo, 1)
        except (ActorError, TimeoutError) as error:
            return f"{type(error).__name__}: {error}"
        return "it was served"

    @endpoint
    def hold_a_thread(self) -> None:
        """A plain function that never returns."""
        threading.Event().wait()


async def fails_unseen() -> None:
    raise RuntimeError("nobody waited for this")
