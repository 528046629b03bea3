"""A supervisor that belongs to one actor system: with its folders, and gone when the system is."""

from collections.abc import Sequence

from asyncrl.runtime.host import Host, import_path, make_private_folder, own_pid, remove_folder
from asyncrl.runtime.security import private_folder
from asyncrl.runtime.supervisor_client import SupervisorClient
from asyncrl.runtime.tasks import shielded

ENVIRONMENT = ("VIRTUAL_ENV", "PYTHONHASHSEED", "OMP_NUM_THREADS", "TZ")
"""What children see of this environment, besides what every supervisor lets pass. They import what this process can."""
STOP_SECONDS = 10.0


class OwnSupervisor:
    """``folder`` is private and holds the sockets, ``logs`` the output of each child; a folder for logs that was not named is removed."""

    def __init__(self, host: Host, log_folder: str = "", env_allow: Sequence[str] = ()) -> None:
        self.folder = private_folder()
        self.logs = log_folder or make_private_folder("asyncrl-logs-")
        self._keep = bool(log_folder)
        self._owner = own_pid()
        try:
            self.client = SupervisorClient.start(
                host=host,
                folder=self.folder,
                log_folder=self.logs,
                attempt="",
                env_allow=[*ENVIRONMENT, *env_allow],
                environment={"PYTHONPATH": import_path()},
                temporary_logs=not self._keep,
            )
        except OSError:
            self._clean()
            raise

    async def stop(self) -> None:
        """SIGTERM to the children, SIGKILL after 3 s; returns when all are gone."""
        try:
            async with shielded(STOP_SECONDS) as shield:
                await shield.run(self.client.stop)
        finally:
            self._clean()

    def abandon(self) -> None:
        """Kills it at once, before it has children."""
        self.client.kill()
        self._clean()

    def _clean(self) -> None:
        if own_pid() != self._owner:
            # In a fork: they are its parent's.
            return
        remove_folder(self.folder)
        if not self._keep:
            remove_folder(self.logs)
