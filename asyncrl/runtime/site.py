"""One process as seen by its connections: who it is, who lives in it, what it waits for."""

import msgspec

from asyncrl.runtime.host import Host
from asyncrl.runtime.mailbox import Mailbox
from asyncrl.runtime.messages import Hello
from asyncrl.runtime.security import Identity
from asyncrl.runtime.waits import WaitRegistry


class Site(msgspec.Struct):
    """Shared by all connections of one ``ActorSystem``."""

    identity: Identity
    host: Host
    waits: WaitRegistry
    mailboxes: dict[str, Mailbox] = {}
    newest: dict[str, int] = {}
    closed: bool = False

    def admit(self, hello: Hello) -> str:
        """Checks a caller and remembers its generation; returns the reason of a refusal, "" when it is welcome."""
        if self.closed:
            return f"{self.identity.process} is closing"
        reason = self.identity.refusal_of(hello, self.newest.get(hello.process, 0))
        if not reason:
            self.newest[hello.process] = hello.generation
        return reason
