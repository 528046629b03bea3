"""A child process: one actor system with one actor, started by the supervisor.

Run as ``python -m asyncrl.runtime.process asyncrl:NAME BIRTH_FD READY_FD``. SIGTERM stops the actor and exits 0; SIGINT
is the launcher's business and ignored.
"""

import asyncio
import functools
import gc
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from asyncrl.errors import WireError
from asyncrl.runtime.actor import Actor
from asyncrl.runtime.events import open_events
from asyncrl.runtime.forced_exit import ForcedExit
from asyncrl.runtime.host import RealHost, read_sealed, run_main, show_name
from asyncrl.runtime.plan import constructor_of
from asyncrl.runtime.stacks import answer_signal
from asyncrl.runtime.supervisor_messages import Birth, framed
from asyncrl.runtime.system import ActorSystem

logger = logging.getLogger("asyncrl.process")

YOUNG_OBJECTS = 50_000
"""New containers after which the youngest are looked through; Python's own figure is 700."""


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
    stop, host, loop = asyncio.Event(), RealHost(), asyncio.get_running_loop()
    answer_signal(sys.stderr, loop)
    spec, watching = birth.spec, birth.watching
    cls = actor_class(spec.actor)
    spare_collections()
    args, kwargs = constructor_of(cls).decode(spec.arguments, ())
    name = spec.actor_name or spec.name
    member = birth.member
    events = open_events(host, watching, spec.name, birth.generation, member.attempt)
    system = ActorSystem.bind(
        spec.name,
        birth.endpoint,
        host=host,
        attempt=member.attempt,
        generation=birth.generation,
        token=member.token,
        role=spec.role,
        keys=member.keys,
        liveness=member.liveness,
        events=events,
        watching=watching,
        shared_memory=member.shared_memory,
    )
    failures: list[BaseException] = []
    exit = ForcedExit(host, spec.name, watching.exit_within, waits=system.waits, before=None if events is None else events.flush)

    def leave() -> None:
        exit.start()
        stop.set()

    def failed(cause: str, error: BaseException) -> None:
        logger.error("%s ends: %s%s", spec.name, cause, "".join(f"\nwaiting {line}" for line in system.waits.describe()))
        failures.append(error)
        leave()

    loop.add_signal_handler(signal.SIGTERM, leave)
    loop.set_exception_handler(functools.partial(unobserved, failed))
    system.on_actor_failure = failed
    async with system:
        if member.directory is not None:
            await system.join(member.directory)
        await system.spawn(cls, *args, name=name, **kwargs)
        os.write(ready, framed(system.address(name)))
        os.close(ready)
        await stop.wait()
    if failures:
        raise failures[0]


def spare_collections() -> None:
    """Leaves the program out of garbage collections, and makes them rarer: data that an actor keeps is no garbage either."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def unobserved(failed: Callable[[str, BaseException], None], loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Exception handler of the loop: an error that nobody waits for ends the process, with its own traceback."""
    loop.default_exception_handler(context)
    error = context.get("exception")
    if isinstance(error, Exception) and not context.keys().isdisjoint(("task", "future", "handle")):
        failed(f"{context['message']}: {type(error).__name__}: {error}", error)


def start_log() -> None:
    """What the process says goes to its standard error. Our own lines keep their way whatever a library does to the root logger."""
    form = "%(asctime)s %(name)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=form)
    ours, handler = logging.getLogger("asyncrl"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter(form))
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    ours.propagate = False


def main() -> None:
    """Entry of a child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o077)
    show_name(sys.argv[1].removeprefix("asyncrl:"))
    start_log()
    birth = msgspec.msgpack.decode(read_sealed(int(sys.argv[2])), type=Birth)
    ready = int(sys.argv[3])
    # The actor's own children must not hold the pipe open.
    os.set_inheritable(ready, False)
    run_main(functools.partial(serve, birth, ready))


if __name__ == "__main__":
    main()
