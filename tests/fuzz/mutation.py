"""Frames that are almost right, and frames that are nothing: seeded, aware of the structure that they break."""

import random
import struct
from collections.abc import Callable
from typing import Any

import msgspec

from asyncrl.runtime import messages
from asyncrl.runtime.failures import OWN
from asyncrl.runtime.messages import SCHEMA, VERSION, Call, Cancel, Credit, Goodbye, Hello

TOKEN = b"t" * 32
ATTEMPT = "a1"

BOMBS = (
    b"",
    b"\xc1",
    b"\xc0",
    b"\xdd\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01",
    b"\x9b\xa4call\x01\xdb\xff\xff\xff\xff",
    b"\x91" * 100_000,
    b"\x81" * 100_000,
    b"\x93\xa5reply\x01" + b"\x91" * 100_000,
    b"\xa5hello" * 1000,
)
"""Length bombs, nesting, and marks without what they announce."""

WILD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63 - 1,
    2**64 - 1,
    -(2**63),
    1.5,
    -1.5,
    float("inf"),
    float("nan"),
    "",
    "c",
    "worker",
    "x" * 300,
    "x" * 70_000,
    b"",
    b"\xff" * 40,
    [],
    [[[[[]]]]],
    {},
    {"a": 1},
    {1: None},
    msgspec.msgpack.Ext(5, b"ext"),
)
"""Values that may take the place of any other."""

FRAMES = ([(0, 1, "a")], [(0, 0, "a")], [(-1, 1, "a")], [(0, 2**63, "a")], [(2**62, 1, None)], [(0, 1, [1])])
"""Argument lists that refer to the frames behind their message, most of them wrongly."""
ARGUMENTS: tuple[Any, ...] = (
    *FRAMES,
    [],
    [1],
    [-1],
    ["1"],
    [1, 2],
    [None],
    {"n": 1},
    1,
    None,
    [[1]],
    [2**64 - 1],
    [1.5],
    [b"x"],
    [[1, "a"]],
    ["\x00"],
)
"""Argument lists, most of them wrong for most endpoints."""


def hello(target: str, token: bytes = TOKEN, process: str = "insider", role: str = "") -> Hello:
    """The first message to ``target``; right but for the token, if that is another one."""
    return Hello(VERSION, SCHEMA, process, ATTEMPT, 0, token, target, 0, role)


def call(number: int, method: str, arguments: Any, actor: str = "target", mode: Any = "call") -> Call:
    """A well-formed call."""
    values = {"id": number, "actor": actor, "method": method, "mode": mode, "credit": 4 if mode == "stream" else 0}
    rest = {"deadline": 5.0, "silence": 0.0, "sequence": -1, "operation": 0, "trace": ""}
    fields = {**rest, **values, "arguments": msgspec.Raw(msgspec.msgpack.encode(arguments))}
    return Call(**{name: fields[name] for name in Call.__struct_fields__})


def plain(message: msgspec.Struct) -> list[Any]:
    """A message as the list that it is on the wire."""
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    assert isinstance(decoded, list)
    return decoded


def plain_map(message: msgspec.Struct) -> dict[str, Any]:
    """A message of the control stream as the map that it is there."""
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    assert isinstance(decoded, dict)
    return decoded


class Mutator:
    """Breaks messages. The same seed breaks them in the same way.

    ``samples`` are sound messages. ``plausible`` makes one that fits the wire and may still mean nothing.
    """

    def __init__(self, seed: int, samples: list[list[Any]], plausible: Callable[[random.Random], msgspec.Struct]) -> None:
        self.random = random.Random(seed)
        self.samples, self.plausible = samples, plausible

    def transport_message(self) -> list[bytes]:
        """The frames of one message, at least one."""
        kind = self.random.randrange(24)
        if kind >= 8:
            return [msgspec.msgpack.encode(self.plausible(self.random)), *self._buffers()]
        if kind == 0:
            return [self.random.choice(BOMBS)]
        if kind == 1:
            return [self.random.randbytes(self.random.randint(0, 200)) for _ in range(self.random.randint(1, 4))]
        if kind == 2:
            return [self._joined()]
        if kind == 3:
            return [b"\xc0" + self.random.choice((self._structured(), self.random.randbytes(9))), self._structured()]
        if kind <= 6:
            return [self._bytes_changed(self._encoded(self.random.choice(self.samples)))]
        return [self._structured(), *self._buffers()]

    def _buffers(self) -> list[bytes]:
        """Frames behind a header, mostly none."""
        if self.random.random() < 0.8:
            return []
        return [self.random.randbytes(self.random.choice((0, 1, 16, 20_000))) for _ in range(self.random.randint(1, 6))]

    def _structured(self) -> bytes:
        """Valid MessagePack of a message of which a part or two is wrong."""
        message = list(self.random.choice(self.samples))
        for _ in range(self.random.randint(0, 2)):
            self._change(message)
        return self._encoded(message)

    def _change(self, message: list[Any]) -> None:
        at = self.random.randrange(len(message)) if message else 0
        kind = self.random.randrange(10)
        if kind == 0 and message:
            del message[at]
        elif kind == 1:
            message.insert(at, self.random.choice(WILD))
        elif kind == 2 and message:
            message[at] = self.random.choice(self.random.choice(self.samples))
        elif kind == 3 and message:
            message[0] = self.random.choice(self.samples)[0]
        elif message and kind <= 6:
            message[-1] = self.random.choice(ARGUMENTS)
        elif message:
            message[at] = self.random.choice(WILD)

    def _encoded(self, message: Any) -> bytes:
        return msgspec.msgpack.encode(message)

    def _bytes_changed(self, frame: bytes) -> bytes:
        changed = bytearray(frame)
        for _ in range(self.random.randint(1, 4)):
            kind, at = self.random.randrange(5), self.random.randrange(len(changed)) if changed else 0
            if kind <= 1 and changed:
                changed[at] = self.random.randrange(256)
            elif kind == 2:
                changed[at:at] = self.random.randbytes(self.random.randint(1, 8))
            elif kind == 3:
                del changed[at : at + self.random.randint(1, 8)]
            else:
                del changed[self.random.randrange(len(changed) + 1) :]
        return bytes(changed)

    def _joined(self) -> bytes:
        """Several messages in one frame, as a busy link sends them, or almost so."""
        parts = [b"\xc1"]
        for _ in range(self.random.randint(1, 5)):
            message = self._structured()
            wrong = self.random.choice((0, 0, 0, -1, 1, 2**31))
            parts += [struct.pack("<I", max(0, len(message) + wrong) & 0xFFFFFFFF), message]
        frame = b"".join(parts)
        return frame[: self.random.randint(1, len(frame))] if self.random.random() < 0.3 else frame


def to_callee(greeting: Hello) -> list[list[Any]]:
    """What a caller says, with the numbers of calls that exist and of calls that do not."""
    calls = [call(n, method, arguments) for n, (method, arguments) in enumerate((("add", [1]), ("named", ["a", 2]), ("many", [[1, 2]])), 1)]
    streams = [call(9, "count", [3], mode="stream"), call(10, "endless", [], mode="stream"), call(11, "hang", [])]
    rest = [Cancel(1), Cancel(11), Cancel(999), Credit(10, 3), Credit(999, 2**40), Goodbye("bye")]
    return [plain(each) for each in (greeting, *calls, *streams, *rest)]


METHODS = ("add", "named", "many", "count", "endless", "hang", "together", "plain", "block", "seen", "nothing", "__init__", "")
NUMBERS = (0, 1, 2, 3, 9, 10, 11, 2**40, 2**63, 2**64 - 1)


def plausible_to_callee(rng: random.Random) -> msgspec.Struct:
    """Something that a caller may say as far as the wire is concerned."""
    kind = rng.randrange(10)
    if kind == 0:
        return Cancel(rng.choice(NUMBERS))
    if kind == 1:
        return Credit(rng.choice(NUMBERS), rng.choice(NUMBERS))
    sound = call(rng.randrange(1, 2**40), rng.choice(METHODS), rng.choice(ARGUMENTS), rng.choice(("target",) * 8 + ("nobody", "")))
    odd = {
        "mode": rng.choice(("call", "call", "tell", "stream")),
        "deadline": rng.choice((0.0, 1e-9, 5.0, 1e308, float("inf"))),
        "silence": rng.choice((0.0, 0.0, 1e-300, 1.0, 1e308)),
        "credit": rng.choice((0, 1, 16, 2**63)),
        "sequence": rng.choice((-1, -1, -1, 0, 1, 2**62, -(2**62))),
        "operation": rng.choice((0, 0, 1, 2, 2**63)),
    }
    return msgspec.structs.replace(sound, **odd)


def plausible_to_caller(number: int, rng: random.Random) -> msgspec.Struct:
    """Something that a callee may say as far as the wire is concerned, to the call of this number."""
    to = rng.choice((number,) * 6 + (0, 1, number + 1, 2**64 - 1))
    value = msgspec.Raw(msgspec.msgpack.encode(rng.choice((*ARGUMENTS, *WILD))))
    kind = rng.randrange(8)
    if kind == 0:
        return messages.Reply(to, value)
    if kind == 1:
        return messages.Accepted(to)
    if kind == 2:
        name = rng.choice(("RuntimeError", "BaseException", *OWN))
        held = {key: rng.choice(WILD[:-1]) for key in rng.sample(("key", "seen", "cause", "who", "what", "seconds", "known", "self"), 3)}
        return messages.Failure(to, name, "text", "", rng.choice((None, {}, held)))
    if kind == 3:
        return messages.Progress(to)
    if kind == 4:
        return messages.Welcome(rng.choice(("liar", "another", "")), rng.choice((0, 1, -1, 2**62)))
    places = rng.choice((0, 0, 1, 2, 2**63))
    return messages.StreamItem(to, value, places) if kind < 7 else messages.StreamEnd(to, places)


def to_caller(number: int) -> list[list[Any]]:
    """What a callee says to the call of this number."""
    one, two = msgspec.Raw(msgspec.msgpack.encode(1)), msgspec.Raw(msgspec.msgpack.encode([1, 2]))
    errors = [
        ("RuntimeError", None),
        ("Fenced", {"key": "k", "expected": "1", "seen": "2"}),
        ("CallTimedOut", {"who": "w", "what": "x", "seconds": "soon"}),
        ("MissingField", {"key": "k", "field": "f", "shard": 1, "known": 5}),
        ("ActorDied", {"name": "n"}),
        ("WireError", {}),
        ("SystemExit", None),
    ]
    failures = [messages.Failure(number, kind, "text", "trace", attributes) for kind, attributes in errors]
    answers = [messages.Reply(number, one), messages.Reply(number, two), messages.Accepted(number), messages.StreamEnd(number, 1)]
    rest = [messages.Progress(number), messages.StreamItem(number, one, 0), messages.Reply(number + 7, one), messages.Welcome("there", 0)]
    return [plain(each) for each in (*failures, *answers, *rest, messages.Refused("no"), Goodbye("bye"))]
