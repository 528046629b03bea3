"""How the fault tests bind their systems: a verdict on a silent peer within a second instead of ten."""

from asyncrl.runtime import ActorSystem, Host, Keyring, Liveness

VERDICT = 0.8
"""Seconds of silence after which a peer counts as dead, here."""
HEARTBEAT = 0.2
QUICK = Liveness(heartbeat=HEARTBEAT, dead_after=VERDICT)
PULSE = 2.0
"""Seconds between two looks of a callee for callers that are gone."""
TOKEN = b"t" * 32
ROLE = "controller"


def bind(
    process: str, endpoint: str, host: Host, *, attempt: str = "a1", generation: int = 0, token: bytes = TOKEN, job_key: bytes = b""
) -> ActorSystem:
    """A system whose heartbeats give a verdict on a silent peer within ``VERDICT`` seconds. With a job key its tcp is sealed."""
    if job_key:
        keys = Keyring.from_job_key(job_key, ROLE)
        return ActorSystem.bind(process, endpoint, host=host, attempt=attempt, generation=generation, keys=keys, liveness=QUICK)
    return ActorSystem.bind(process, endpoint, host=host, attempt=attempt, generation=generation, token=token, liveness=QUICK)
