"""Every error that asyncrl raises on purpose.

::

    AsyncRLError
    ├── ConfigError (ValueError)        the user's configuration; raised before any process starts
    ├── ActorError
    │   ├── ActorDied                   the process or actor that should answer is gone
    │   ├── CallTimedOut (TimeoutError) a deadline passed, or a watched call fell silent
    │   ├── CallFailed                  the endpoint raised; carries the remote traceback
    │   ├── Undeliverable               no such actor or endpoint, no key for its process, or its mailbox refused the message
    │   ├── PermissionDenied            the caller's role may not call this endpoint
    │   └── WireError                   a frame, message or argument that does not fit its declared type
    ├── TransferError
    │   ├── UnknownRow                  no such key in the partition
    │   ├── MissingField                the row exists, the field was never written
    │   ├── FieldExists                 a put would overwrite without saying so
    │   ├── FieldMismatch               dtype or layout differs from what the field already holds
    │   ├── Fenced                      a guarded put whose guard no longer holds
    │   ├── QueueFull                   no room in a shard's budget for new rows
    │   ├── QueueStorageError           a disk that does not take or give back what a shard keeps on it
    │   └── ShardLost                   a shard lost rows
    ├── RolloutError
    │   ├── GenerationAborted           a generation ended before its end, on request
    │   └── EngineUnavailable           the engine sleeps or has no weights
    ├── RewardError                     a reward function raised, hung or returned no number
    │   └── MissingComponent            it did not return a part of the reward that the estimator needs
    ├── DataError (ValueError)          a row or file of prompts that cannot be used
    ├── WeightSyncError                 a version was not taken over, or taken over wrongly
    │   └── TransferInterrupted         weights on their way to an engine did not arrive; it serves what it had
    ├── CheckpointError                 a checkpoint that cannot be written or trusted
    ├── SimulationStuck                 a simulated run in which nothing can happen any more
    └── RunFailed                       the run cannot go on; carries the first cause

Errors carry what was seen as attributes, so that a caller never parses a message.
"""


class AsyncRLError(Exception):
    """Root of the tree."""


class ConfigError(AsyncRLError, ValueError):
    """A key, value or combination that cannot run.

    Attributes: ``key`` (dotted name, or "" for a combination), ``seen`` (the value as given), ``allowed`` (what
    would be accepted), ``hint`` (a "did you mean", or "").
    """

    def __init__(self, key: str, seen: object, allowed: str, hint: str = "") -> None:
        self.key, self.seen, self.allowed, self.hint = key, seen, allowed, hint
        text = f"{key}: got {seen!r}; {allowed}" if key else f"got {seen!r}; {allowed}"
        super().__init__(f"{text} ({hint})" if hint else text)


class ActorError(AsyncRLError):
    """A call to an actor that did not end with its result."""


class ActorDied(ActorError):
    """The actor, or the process that hosts it, is gone. ``name`` is what died, ``cause`` why, as far as known.

    ``lost`` says that this follows from a broken connection of this process: the next call finds another life, or fails
    for good; ``lived`` that there had been a life at its other end: it had answered, or its end was told. Neither travels; what
    another process lost is no news about a connection of this one.
    """

    def __init__(self, name: str, cause: str) -> None:
        self.name, self.cause = name, cause
        self.lost = self.lived = False
        super().__init__(f"{name} died: {cause}")


class CallTimedOut(ActorError, TimeoutError):
    """``what`` was not answered by ``who`` within ``seconds``."""

    def __init__(self, who: str, what: str, seconds: float) -> None:
        self.who, self.what, self.seconds = who, what, seconds
        super().__init__(f"{who} did not answer {what} within {seconds:g} s")


class CallFailed(ActorError):
    """The endpoint raised. ``kind`` is the remote class name, ``message`` its text, ``remote_traceback`` its trace."""

    def __init__(self, who: str, what: str, kind: str, message: str, remote_traceback: str) -> None:
        self.who, self.what, self.kind, self.message, self.remote_traceback = who, what, kind, message, remote_traceback
        super().__init__(f"{what} on {who} raised {kind}: {message}")


class Undeliverable(ActorError):
    """The message reached nobody. ``who`` was addressed, ``reason`` says what was missing."""

    def __init__(self, who: str, reason: str) -> None:
        self.who, self.reason = who, reason
        super().__init__(f"cannot deliver to {who}: {reason}")


class PermissionDenied(ActorError):
    """``what`` of ``who`` may not be called by a process of ``role``; ``allowed`` are the roles that may."""

    def __init__(self, who: str, what: str, role: str, allowed: tuple[str, ...]) -> None:
        self.who, self.what, self.role, self.allowed = who, what, role, allowed
        super().__init__(f"{what} of {who} refuses role {role!r}; allowed: {', '.join(allowed)}")


class WireError(ActorError):
    """Bytes or arguments that do not fit their declared type."""


class TransferError(AsyncRLError):
    """Root of the TransferQueue's errors."""


class UnknownRow(TransferError):
    """``key`` is not in ``partition`` of ``shard``."""

    def __init__(self, key: str, partition: str, shard: int) -> None:
        self.key, self.partition, self.shard = key, partition, shard
        super().__init__(f"no row {key!r} in partition {partition!r} of shard {shard}")


class MissingField(TransferError):
    """``field`` of row ``key`` was never written."""

    def __init__(self, key: str, field: str, shard: int, known: tuple[str, ...] = ()) -> None:
        self.key, self.field, self.shard, self.known = key, field, shard, known
        super().__init__(f"row {key!r} of shard {shard} has no field {field!r}; it has {', '.join(known) or 'none'}")


class FieldExists(TransferError):
    """A put without ``overwrite`` met a value."""

    def __init__(self, key: str, field: str, shard: int) -> None:
        self.key, self.field, self.shard = key, field, shard
        super().__init__(f"row {key!r} of shard {shard} already has field {field!r}; pass overwrite=True to replace it")


class FieldMismatch(TransferError):
    """A put whose dtype or layout differs from that of the field in this partition."""

    def __init__(self, field: str, shard: int, seen: str, expected: str) -> None:
        self.field, self.shard, self.seen, self.expected = field, shard, seen, expected
        super().__init__(f"field {field!r} of shard {shard} holds {expected}, got {seen}")


class Fenced(TransferError):
    """A guarded put came too late: ``key`` carries ``seen``, the writer expected ``expected``."""

    def __init__(self, key: str, expected: str, seen: str) -> None:
        self.key, self.expected, self.seen = key, expected, seen
        super().__init__(f"guard {key!r} holds {seen}, the writer expected {expected}")


class QueueFull(TransferError):
    """New rows of ``needed`` bytes do not fit into shard ``slot``, which holds ``used`` of ``budget`` bytes."""

    def __init__(self, slot: int, needed: int, used: int, budget: int) -> None:
        self.slot, self.needed, self.used, self.budget = slot, needed, used, budget
        super().__init__(f"shard {slot} has no room for {needed} bytes: {used} of {budget} are used")


class QueueStorageError(TransferError):
    """``file`` could not be written or read; ``reason`` is the system's."""

    def __init__(self, file: str, reason: str) -> None:
        self.file, self.reason = file, reason
        super().__init__(f"{file}: {reason}")


class ShardLost(TransferError):
    """Shard ``slot`` lost its rows with ``incarnation``; ``keys`` are those that are known to be gone, () when all may be."""

    def __init__(self, slot: int, incarnation: str, keys: tuple[str, ...] = ()) -> None:
        self.slot, self.incarnation, self.keys = slot, incarnation, keys
        which = f"rows {', '.join(keys[:5])}{' ...' if len(keys) > 5 else ''}" if keys else "the rows"
        super().__init__(f"shard {slot} lost {which} of incarnation {incarnation}")


class RolloutError(AsyncRLError):
    """Root of the engines' errors."""


class GenerationAborted(RolloutError):
    """A generation was ended on request; what it had sampled is in its output."""


class EngineUnavailable(RolloutError):
    """The engine sleeps, or has never been given weights."""


class RewardError(AsyncRLError):
    """A reward could not be computed; the session it belongs to fails."""


class MissingComponent(RewardError):
    """The reward of row ``key`` lacks ``component``, a finite number; ``known`` are the names that came with it."""

    def __init__(self, component: str, key: str, known: tuple[str, ...]) -> None:
        self.component, self.key, self.known = component, key, known
        super().__init__(
            f"the reward of row {key!r} has no component {component!r} that is a finite number; it has {', '.join(known) or 'none'}"
        )


class DataError(AsyncRLError, ValueError):
    """A prompt file or row that cannot be used; the message names file and row number."""


class WeightSyncError(AsyncRLError):
    """A version that was not taken over, or taken over wrongly."""


class TransferInterrupted(WeightSyncError):
    """Weights did not arrive at ``peer``, or from it; ``cause`` is what was seen. The engine serves what it had."""

    def __init__(self, peer: str, cause: str) -> None:
        self.peer, self.cause = peer, cause
        super().__init__(f"the transfer of weights with {peer} was interrupted: {cause}")


class CheckpointError(AsyncRLError):
    """A checkpoint that cannot be written or trusted."""


class SimulationStuck(AsyncRLError):
    """A simulated run cannot go on: ``cause``, ``at`` virtual second, with the ``waits`` and ``tasks`` in progress in words."""

    def __init__(self, cause: str, at: float, waits: tuple[str, ...], tasks: tuple[str, ...]) -> None:
        self.cause, self.at, self.waits, self.tasks = cause, at, waits, tasks
        lines = [f"stuck at virtual second {at:.6f}: {cause}", *(f"waits for {wait}" for wait in waits or ("nobody",)), *tasks]
        super().__init__("\n".join(lines))


class RunFailed(AsyncRLError):
    """The run cannot go on. ``cause`` is the first thing that went wrong."""

    def __init__(self, cause: str) -> None:
        self.cause = cause
        super().__init__(cause)
