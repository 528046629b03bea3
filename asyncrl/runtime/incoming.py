"""The callee's end of a connection: one caller, and its calls here."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from asyncrl.errors import ActorDied, ActorError, PermissionDenied, Undeliverable, WireError
from asyncrl.runtime.codec import ENCODER
from asyncrl.runtime.failures import describe
from asyncrl.runtime.invocation import Invocation
from asyncrl.runtime.messages import TO_CALLEE, Call, Cancel, Credit, Goodbye, Hello, Message, Progress, Refused, Welcome
from asyncrl.runtime.shapes import Buffer
from asyncrl.runtime.site import Site
from asyncrl.runtime.transport import Link

DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(TO_CALLEE)
MOST_CALLS = 65536
"""Unanswered calls of one caller; its credit is far below."""
PULSE_SECONDS = 2.0
"""How often a caller with unanswered calls is sent something: an accepting socket is told that its peer has gone only when it sends.
One without calls is asked for more rarely: what is kept for it can wait."""
PULSE = Progress(0)
"""Belongs to no call."""


class Incoming:
    """Receiver of one caller's messages. Nothing is served before its hello was accepted.

    Where the link does not tell that the caller is gone, it is noticed after ``idle`` seconds without calls.
    """

    def __init__(
        self, site: Site, link: Link, greeted: "Callable[[Incoming], None]", gone: "Callable[[Incoming], None]", idle: float
    ) -> None:
        self._site, self._link, self._greeted, self._gone = site, link, greeted, gone
        self.host, self.waits, self.events = site.host, site.waits, site.events
        self.process, self.role, self.generation = "", "", 0
        self._calls: dict[int, Invocation] = {}
        self._newest = 0
        self._closed = False
        self._idle = idle
        self._pulse: asyncio.TimerHandle | None = None
        self._quick = False

    def received(self, frames: Sequence[memoryview]) -> None:
        """One message of a caller, or of a stranger."""
        if self._closed:
            return
        try:
            message = DECODER.decode(frames[0])
        except (msgspec.DecodeError, RecursionError, IndexError, ValueError) as error:
            self._refuse(f"a message that cannot be read ({error})")
            return
        if isinstance(message, Call) and self.process:
            self._call(message, frames[1:])
        elif isinstance(message, Hello):
            self._hello(message)
        elif not self.process:
            self._refuse("a message came before the hello", before_hello=True)
        elif isinstance(message, Cancel):
            if (call := self._calls.get(message.id)) is not None:
                call.cancel()
        elif isinstance(message, Credit):
            if (call := self._calls.get(message.id)) is not None:
                call.credit(message.items)
        else:
            self._leave()

    def _hello(self, hello: Hello) -> None:
        reason = self._site.admit(hello, self._link.role)
        if reason or self.process:
            self._refuse(reason or "a second hello")
            return
        self.process, self.role, self.generation = hello.process, hello.role, hello.generation
        self._greeted(self)
        self.send(Welcome(self._site.identity.process, self._site.identity.generation), ())
        self._feel_again(quick=False)

    def _refuse(self, reason: str, before_hello: bool = False) -> None:
        self._site.note_refusal(self.process, reason)
        self.send(Refused(reason[:1000], before_hello), ())
        self.lost(reason)

    def _call(self, call: Call, frames: Sequence[memoryview]) -> None:
        if call.id <= self._newest or len(self._calls) >= MOST_CALLS:
            late = f"call {call.id} comes twice, or after call {self._newest}"
            self._refuse(late if call.id <= self._newest else "more unanswered calls than credit allows")
            return
        self._newest = call.id
        try:
            invocation = self._invocation(call, frames)
        except ActorError as error:
            self.send(describe(call.id, error), ())
            return
        self._calls[call.id] = invocation
        if not self._quick:
            self._feel_again(quick=True)
        if call.operation and self._repeats(call, invocation):
            return
        invocation.mailbox.submit(invocation)

    def _repeats(self, call: Call, invocation: Invocation) -> bool:
        """Whether an idempotent call has been here before: then it gets the first one's answer."""
        key, effects = (f"{self.role}:{self.process}", self.generation, call.operation), invocation.mailbox.effects
        known, running = effects.answer(key), effects.running(key)
        if known is not None:
            self.finished(call.id, msgspec.structs.replace(known.message, id=call.id), ())
        elif running is not None:
            self._calls[call.id] = running
            running.repeat(self, call.id)
        else:
            invocation.key = key
            effects.began(key, invocation)
        return invocation.key is None

    def _invocation(self, call: Call, frames: Sequence[memoryview]) -> Invocation:
        mailbox = self._site.mailboxes.get(call.actor)
        if mailbox is None:
            raise Undeliverable(f"{call.actor}@{self._site.identity.process}", "no actor of this name lives there")
        if mailbox.closed:
            raise ActorDied(call.actor, mailbox.closed)
        plan = mailbox.plans.get(call.method)
        if plan is None:
            kind = type(mailbox.instance).__name__
            raise Undeliverable(f"{call.actor}@{self._site.identity.process}", f"{kind} has no endpoint {call.method!r}")
        if (plan.kind == "stream") != (call.mode == "stream"):
            raise WireError(f"{plan.label} is {'a' if plan.kind == 'stream' else 'no'} stream, it was used by {call.mode}")
        if plan.roles and self.role not in plan.roles:
            raise PermissionDenied(f"{call.actor}@{self._site.identity.process}", plan.label, self.role, plan.roles)
        mailbox.check_sequence(plan, call.sequence)
        return Invocation(self, mailbox, plan, call, frames)

    def finished(self, call: int, message: Message, frames: Sequence[Buffer]) -> None:
        """Sends the last message of a call."""
        if call in self._calls:
            self.send(message, frames)
            self._calls.pop(call, None)

    def send(self, message: Message, frames: Sequence[Buffer]) -> None:
        """Sends one message to the caller; one that cannot travel becomes a failure of its call."""
        if self._closed:
            return
        self._link.send([ENCODER.encode(message), *frames])

    def _feel(self) -> None:
        if self._calls or not self._quick:
            self.send(PULSE, ())
        self._feel_again(quick=bool(self._calls))

    def _feel_again(self, quick: bool) -> None:
        """Sets the time of the next pulse, ``quick`` where calls are unanswered."""
        if self._pulse is not None:
            self._pulse.cancel()
        self._pulse, self._quick = None, quick
        if not self._closed and (quick or not self._link.tells):
            self._pulse = asyncio.get_running_loop().call_later(PULSE_SECONDS if quick else self._idle, self._feel)

    @property
    def admitted(self) -> bool:
        """Whether the caller's hello was accepted."""
        return bool(self.process)

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent to the caller any more."""
        return self._closed

    def broken(self, seen: str) -> None:
        """The caller sent what cannot be."""
        if not self._closed:
            self._refuse(seen, before_hello=not self.process)

    def lost(self, cause: str) -> None:
        """The connection broke: its calls stop, unanswered. An idempotent one goes on for a while: it may come again."""
        for call in self._given_up():
            if call.key is None:
                call.cancel()
            else:
                call.disconnected()

    def _leave(self) -> None:
        """The caller is gone for good: all its calls stop."""
        for call in self._given_up():
            call.cancel()

    def _given_up(self) -> list[Invocation]:
        """Ends the connection; the calls that are left are not answered over it."""
        calls = list(self._calls.values())
        self._calls.clear()
        self._end()
        return calls

    def fence(self, reason: str) -> None:
        """The caller's life is over, a later one has its name: it is told so if it can still hear, and its calls stop."""
        self.send(Refused(reason[:1000]), ())
        self._leave()

    def close(self, cause: str) -> None:
        """This process leaves: every call that is left is answered."""
        for number in list(self._calls):
            self.finished(number, describe(number, ActorDied(self._site.identity.process, cause)), ())
        if self.process:
            self.send(Goodbye(cause), ())
        self._end()

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            if self._pulse is not None:
                self._pulse.cancel()
            self._link.close()
            self._gone(self)
