"""How the supervisor process is started: its papers, its socket, its log, and what it sees of the environment."""

import os
from collections.abc import Mapping

import msgspec

from asyncrl.runtime.host import ControlSocket, Launched, launch_session, open_log, own_pid, python_module, sealed_bytes, socket_pair
from asyncrl.runtime.supervisor_messages import Settings

ALWAYS_ALLOWED = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL")


def launch_supervisor(settings: Settings, name: str, added: Mapping[str, str]) -> tuple[Launched, ControlSocket]:
    """Starts it, and returns it with this side's end of its control socket. Raises OSError.

    It sees ``ALWAYS_ALLOWED`` and ``settings.env_allow`` of this process's environment, and ``added``; so may its children.
    """
    allowed = [*ALWAYS_ALLOWED, *settings.env_allow, *added]
    seen = {key: os.environ[key] for key in allowed if key in os.environ} | dict(added)
    near, far = socket_pair()
    papers = sealed_bytes(msgspec.msgpack.encode(msgspec.structs.replace(settings, env_allow=allowed)))
    argv = python_module("asyncrl.runtime.supervisor", f"asyncrl:{name}", str(papers), str(far.fileno()), str(own_pid()))
    try:
        with open_log(f"{settings.log_folder}/{name}.log") as log:
            process = launch_session(argv, seen, (papers, far.fileno()), log)
    except OSError:
        near.close()
        raise
    finally:
        os.close(papers)
        far.close()
    near.setblocking(False)
    return process, near
