"""One process as seen by its connections: who it is, who lives in it, what it waits for."""

import logging

import msgspec

from asyncrl.runtime.host import Host
from asyncrl.runtime.mailbox import Mailbox
from asyncrl.runtime.messages import Hello
from asyncrl.runtime.security import Identity
from asyncrl.runtime.waits import WaitRegistry

logger = logging.getLogger(__name__)


class Site(msgspec.Struct):
    """Shared by all connections of one ``ActorSystem``."""

    identity: Identity
    host: Host
    waits: WaitRegistry
    mailboxes: dict[str, Mailbox] = {}
    newest: dict[str, int] = {}
    closed: bool = False
    refusals: int = 0

    def note_refusal(self, who: str, reason: str) -> None:
        """Logs the 1st, 2nd, 4th, 8th ... refusal: a flood of garbage must not become a flood of lines."""
        self.refusals += 1
        if self.refusals & (self.refusals - 1) == 0:
            logger.warning("%s refuses %s (%d refusals so far): %s", self.identity.process, who or "a stranger", self.refusals, reason)

    def admit(self, hello: Hello) -> str:
        """Checks a caller and remembers its generation; returns the reason of a refusal, "" when it is welcome."""
        if self.closed:
            return f"{self.identity.process} is closing"
        reason = self.identity.refusal_of(hello, self.newest.get(hello.process, 0))
        if not reason:
            self.newest[hello.process] = hello.generation
        return reason
