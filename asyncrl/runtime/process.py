"""A child process: one actor system with one actor, started by the supervisor.

Run as ``python -m asyncrl.runtime.process asyncrl:NAME BIRTH_FD READY_FD``. SIGTERM stops the actor and exits 0; SIGINT
is the launcher's business and ignored.
"""

import asyncio
import functools
import importlib
import logging
import os
import signal
import sys

import msgspec

from asyncrl.errors import WireError
from asyncrl.runtime.actor import Actor
from asyncrl.runtime.host import RealHost, read_sealed, run_main
from asyncrl.runtime.plan import constructor_of
from asyncrl.runtime.supervisor_messages import Birth, framed
from asyncrl.runtime.system import ActorSystem


def actor_class(path: str) -> type[Actor]:
    """The class at "module:Class". Raises WireError when it is no actor."""
    module, _, qualname = path.partition(":")
    found: object = importlib.import_module(module)
    for part in qualname.split("."):
        found = vars(found)[part]
    if not (isinstance(found, type) and issubclass(found, Actor)):
        raise WireError(f"{path} is no Actor class")
    return found


async def serve(birth: Birth, ready: int) -> None:
    """Builds the system and the actor, says that it is ready, and serves until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    spec = birth.spec
    cls = actor_class(spec.actor)
    args, kwargs = constructor_of(cls).decode(spec.arguments, ())
    name = spec.actor_name or spec.name
    system = ActorSystem.bind(
        spec.name, birth.endpoint, host=RealHost(), attempt=birth.attempt, generation=birth.generation, token=birth.token
    )
    failures: list[BaseException] = []

    def failed(cause: str, error: BaseException) -> None:
        failures.append(error)
        stop.set()

    system.on_actor_failure = failed
    async with system:
        await system.spawn(cls, *args, name=name, **kwargs)
        os.write(ready, framed(system.address(name)))
        os.close(ready)
        await stop.wait()
    if failures:
        raise failures[0]


def main() -> None:
    """Entry of a child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o077)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    birth = msgspec.msgpack.decode(read_sealed(int(sys.argv[2])), type=Birth)
    ready = int(sys.argv[3])
    # The actor's own children must not hold the pipe open.
    os.set_inheritable(ready, False)
    run_main(functools.partial(serve, birth, ready))


if __name__ == "__main__":
    main()
