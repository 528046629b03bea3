"""The callee's end of a connection: one caller, and its calls here."""

from collections.abc import Callable, Sequence

import msgspec

from asyncrl.errors import ActorDied, ActorError, Undeliverable, WireError
from asyncrl.runtime.codec import ENCODER
from asyncrl.runtime.failures import describe
from asyncrl.runtime.invocation import Invocation
from asyncrl.runtime.messages import TO_CALLEE, Call, Cancel, Credit, Goodbye, Hello, Message, Refused, Welcome
from asyncrl.runtime.shapes import Buffer
from asyncrl.runtime.site import Site
from asyncrl.runtime.transport import Link

DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(TO_CALLEE)
MOST_CALLS = 65536
"""Unanswered calls of one caller; its credit is far below."""


class Incoming:
    """Receiver of one caller's messages. Nothing is served before its hello was accepted."""

    def __init__(self, site: Site, link: Link, gone: "Callable[[Incoming], None]") -> None:
        self._site, self._link, self._gone = site, link, gone
        self.host, self.waits = site.host, site.waits
        self.process, self.generation = "", 0
        self._calls: dict[int, Invocation] = {}
        self._closed = False

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
            self._refuse("a message came before the hello")
        elif isinstance(message, Cancel):
            if (call := self._calls.get(message.id)) is not None:
                call.cancel()
        elif isinstance(message, Credit):
            if (call := self._calls.get(message.id)) is not None:
                call.credit(message.items)
        else:
            self.lost("said goodbye")

    def _hello(self, hello: Hello) -> None:
        reason = self._site.admit(hello)
        if reason or self.process:
            self._refuse(reason or "a second hello")
            return
        self.process, self.generation = hello.process, hello.generation
        self.send(Welcome(self._site.identity.process, self._site.identity.generation), ())

    def _refuse(self, reason: str) -> None:
        self._site.note_refusal(self.process, reason)
        self.send(Refused(reason[:1000]), ())
        self._end()

    def _call(self, call: Call, frames: Sequence[memoryview]) -> None:
        if call.id in self._calls or len(self._calls) >= MOST_CALLS:
            self._refuse(f"call {call.id} comes twice" if call.id in self._calls else "more unanswered calls than credit allows")
            return
        try:
            invocation = self._invocation(call, frames)
        except ActorError as error:
            self.send(describe(call.id, error), ())
            return
        self._calls[call.id] = invocation
        if call.operation and self._repeats(call, invocation):
            return
        invocation.mailbox.submit(invocation)

    def _repeats(self, call: Call, invocation: Invocation) -> bool:
        """Whether an idempotent call has been here before: then it gets the first one's answer."""
        key, effects = (self.process, self.generation, call.operation), invocation.mailbox.effects
        known, running = effects.answer(key), effects.running(key)
        if known is not None:
            self.finished(call.id, msgspec.structs.replace(known.message, id=call.id), known.frames)
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

    def lost(self, cause: str) -> None:
        """The caller is gone: its calls stop, unanswered. An idempotent one goes on: it may come again and ask for its answer."""
        calls = list(self._calls.values())
        self._calls.clear()
        self._end()
        for call in calls:
            if call.key is None:
                call.cancel()

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
            self._link.close()
            self._gone(self)
