"""Who listens at a tcp port that this process wanted."""

from datetime import UTC, datetime

LONGEST = 160
"""Letters of a command line that are shown."""


def holder_of(port: int) -> str:
    """The process of this machine that listens at ``port``: "held by pid 12 of job 'python -m ...', started at ...".

    Processes of other users may not be seen; then that is said.
    """
    import psutil  # a tenth of the runtime's import time, for an error that is rare

    listening = [
        each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port
    ]
    pids = [each.pid for each in listening if each.pid is not None]
    if not pids:
        return "held by a process that this user may not see" if listening else "held for a moment by a connection that was closed"
    try:
        process = psutil.Process(pids[0])
        job = " ".join(process.cmdline())[:LONGEST]
        started = datetime.fromtimestamp(process.create_time(), UTC)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return f"held by pid {pids[0]}"
    return f"held by pid {pids[0]} of job {job!r}, started at {started:%Y-%m-%d %H:%M:%S} UTC"
