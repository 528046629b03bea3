"""One process as seen by its connections: who it is, who lives in it, what it waits for."""

import logging

import msgspec

from asyncrl.runtime.events import EventWriter
from asyncrl.runtime.host import Host
from asyncrl.runtime.mailbox import Mailbox
from asyncrl.runtime.messages import Hello
from asyncrl.runtime.meters import Meters
from asyncrl.runtime.records import Refused
from asyncrl.runtime.security import Identity
from asyncrl.runtime.waits import WaitRegistry

logger = logging.getLogger(__name__)

CREDIT = 1024
"""Calls to one actor that a process may have unanswered, unless said otherwise."""


class Site(msgspec.Struct):
    """Shared by all connections of one ``ActorSystem``."""

    identity: Identity
    host: Host
    waits: WaitRegistry
    mailboxes: dict[str, Mailbox] = {}
    newest: dict[str, int] = {}
    closed: bool = False
    copied: bool = False
    """Whether this is a fork of the process whose connections these were."""
    credit: int = CREDIT
    refusals: int = 0
    meters: Meters = msgspec.field(default_factory=Meters)
    events: EventWriter | None = None

    def note_refusal(self, who: str, reason: str) -> None:
        """Logs the 1st, 2nd, 4th, 8th ... refusal: a flood of garbage must not become a flood of lines."""
        self.refusals += 1
        if self.refusals & (self.refusals - 1) == 0:
            logger.warning("%s refuses %s (%d refusals so far): %s", self.identity.process, who or "a stranger", self.refusals, reason)
            if self.events is not None:
                self.events.write(Refused(self.events.now(), who, reason, self.refusals))

    def admit(self, hello: Hello, proven: str = "") -> str:
        """Checks a caller and remembers its generation; returns the reason of a refusal, "" when it is welcome.

        ``proven`` is the role of its key. Names belong to a role: a caller of another one cannot take a name and fence its owner.
        """
        if self.closed:
            return f"{self.identity.process} is closing"
        name = f"{hello.role}:{hello.process}"
        reason = self.identity.refusal_of(hello, self.newest.get(name, 0), proven)
        if not reason:
            self.newest[name] = hello.generation
        return reason

    def outdate(self, role: str, process: str, oldest: int) -> None:
        """Callers of this name with a generation below ``oldest`` are refused from now on."""
        name = f"{role}:{process}"
        self.newest[name] = max(self.newest.get(name, 0), oldest)
