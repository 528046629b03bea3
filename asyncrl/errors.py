"""Every error that asyncrl raises on purpose.

::

    AsyncRLError
    ├── ConfigError (ValueError)        the user's configuration; raised before any process starts
    ├── ActorError
    │   ├── ActorDied                   the process or actor that should answer is gone
    │   ├── CallTimedOut (TimeoutError) a deadline passed, or a watched call fell silent
    │   ├── CallFailed                  the endpoint raised; carries the remote traceback
    │   ├── Undeliverable               no such actor or endpoint, or its mailbox refused the message
    │   └── WireError                   a frame, message or argument that does not fit its declared type
    ├── TransferError
    │   ├── UnknownRow                  no such key in the partition
    │   ├── MissingField                the row exists, the field was never written
    │   ├── FieldExists                 a put would overwrite without saying so
    │   ├── FieldMismatch               dtype or layout differs from what the field already holds
    │   ├── Fenced                      a guarded put whose guard no longer holds
    │   └── ShardLost                   a shard lost rows
    ├── RolloutError
    │   ├── GenerationAborted           a generation ended before its end, on request
    │   └── EngineUnavailable           the engine sleeps or has no weights
    ├── RewardError                     a reward function raised, hung or returned no number
    ├── DataError (ValueError)          a row or file of prompts that cannot be used
    ├── WeightSyncError                 a version was not taken over, or taken over wrongly
    ├── CheckpointError                 a checkpoint that cannot be written or trusted
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
    """The actor, or the process that hosts it, is gone. ``name`` is what died, ``cause`` why, as far as known."""

    def __init__(self, name: str, cause: str) -> None:
        self.name, self.cause = name, cause
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


class ShardLost(TransferError):
    """Shard ``slot`` lost its rows with ``incarnation``."""

    def __init__(self, slot: int, incarnation: str) -> None:
        self.slot, self.incarnation = slot, incarnation
        super().__init__(f"shard {slot} lost the rows of incarnation {incarnation}")


class RolloutError(AsyncRLError):
    """Root of the engines' errors."""


class GenerationAborted(RolloutError):
    """A generation was ended on request; what it had sampled is in its output."""


class EngineUnavailable(RolloutError):
    """The engine sleeps, or has never been given weights."""


class RewardError(AsyncRLError):
    """A reward could not be computed; the session it belongs to fails."""


class DataError(AsyncRLError, ValueError):
    """A prompt file or row that cannot be used; the message names file and row number."""


class WeightSyncError(AsyncRLError):
    """A version that was not taken over, or taken over wrongly."""


class CheckpointError(AsyncRLError):
    """A checkpoint that cannot be written or trusted."""


class RunFailed(AsyncRLError):
    """The run cannot go on. ``cause`` is the first thing that went wrong."""

    def __init__(self, cause: str) -> None:
        self.cause = cause
        super().__init__(cause)
