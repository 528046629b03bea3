"""Checks of the conversation itself: what each connection of a run carried, message by message."""

from collections import Counter

import msgspec

from asyncrl.runtime.directory import DIRECTORY
from asyncrl.runtime.messages import (
    TO_CALLEE,
    TO_CALLER,
    Accepted,
    Call,
    Failure,
    Hello,
    Message,
    Refused,
    Reply,
    StreamEnd,
    StreamItem,
    Welcome,
)
from asyncrl.runtime.simulation import NetworkEvent
from tests.simulation.journal import Journal

CALLEE: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(TO_CALLEE)
CALLER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(TO_CALLER)
FINAL = (Reply, Accepted, Failure, StreamEnd)


class Talk:
    """One connection: its calls and how each was answered."""

    def __init__(self, caller: str) -> None:
        self.caller = caller
        self.last = 0
        self.greeted = False
        self.actors: dict[int, str] = {}
        self.answered: dict[int, str] = {}
        self.open: Counter[str] = Counter()


class WireCheck:
    """Watches all connections. What breaks a rule becomes a problem in the journal."""

    def __init__(self, journal: Journal, credit: int = 0) -> None:
        self._journal = journal
        self._talks: dict[int, Talk] = {}
        self.credit = credit
        self._newest: dict[tuple[str, str], int] = {}

    def event(self, event: NetworkEvent) -> None:
        """Something was sent or delivered."""
        if event.kind == "delivered":
            self._fenced(event)
        if event.kind != "sent":
            return
        talk = self._talks.get(event.connection)
        if talk is None:
            # The caller speaks first.
            talk = self._talks[event.connection] = Talk(event.source)
        if event.source == talk.caller:
            self._asked(event.connection, talk, CALLEE.decode(event.frames[0]))
        else:
            self._answered(event.connection, talk, event.source, CALLER.decode(event.frames[0]))

    def _fenced(self, event: NetworkEvent) -> None:
        """Once the newer life of a process was welcomed, what the older one asks for must not be done."""
        process, _, life = event.source.partition("#")
        if int(life) < self._newest.get((process, event.target), 0) and b"call" in bytes(event.frames[0][:8]):
            call = CALLEE.decode(event.frames[0])
            assert isinstance(call, Call)
            if call.actor == DIRECTORY:
                return
            self._journal.fenced.append((msgspec.msgpack.decode(call.arguments)[0], event.target))

    def _asked(self, number: int, talk: Talk, message: Message) -> None:
        if isinstance(message, Hello):
            talk.greeted = True
        elif not talk.greeted:
            self._journal.problems.append(f"connection {number}: {message} before the hello")
        if isinstance(message, Call):
            if message.id <= talk.last:
                self._journal.problems.append(f"connection {number}: call {message.id} after call {talk.last}")
            talk.last = message.id
            talk.actors[message.id] = message.actor
            talk.open[message.actor] += 1
            if self.credit and talk.open[message.actor] > self.credit:
                self._journal.problems.append(f"connection {number}: {talk.open[message.actor]} calls to {message.actor} at a time")

    def _answered(self, number: int, talk: Talk, callee: str, message: Message) -> None:
        if isinstance(message, Welcome):
            process, _, life = talk.caller.partition("#")
            pair = process, callee
            self._newest[pair] = max(self._newest.get(pair, 0), int(life))
        elif isinstance(message, FINAL):
            if message.id in talk.answered:
                first = talk.answered[message.id]
                self._journal.problems.append(f"connection {number}: call {message.id} is answered twice: {first}, {message}")
            if message.id not in talk.actors:
                self._journal.problems.append(f"connection {number}: an answer to call {message.id}, which was never made")
                return
            talk.answered[message.id] = repr(message)[:200]
            talk.open[talk.actors[message.id]] -= 1
        elif isinstance(message, StreamItem) and message.id in talk.answered:
            self._journal.problems.append(f"connection {number}: an item of stream {message.id} after its end")
        elif isinstance(message, Refused):
            self._journal.refusals.append(message.reason)
