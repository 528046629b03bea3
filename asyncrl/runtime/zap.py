"""Who may finish a CURVE handshake: libzmq asks by ZAP (rfc.zeromq.org/spec/27), the answer is the caller's role or no.

The question comes to a socket inside the process that the event loop reads like any other: a stalled loop delays
handshakes, and nothing else.
"""

from collections.abc import Callable, Sequence

from asyncrl.runtime.curve import KEY_DIFFERS, Keyring

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
"""Where libzmq asks, in the context of the socket that was called."""
ZAP_DOMAIN = b"asyncrl"

VERSION, OK, REFUSED = b"1.0", b"200", b"400"


class Doorkeeper:
    """Answers for one process. ``refused`` is told of each caller that is not let in."""

    def __init__(self, keys: Keyring, refused: Callable[[str], None]) -> None:
        self._keys, self._refused = keys, refused

    def answer(self, question: Sequence[memoryview]) -> list[bytes]:
        """The reply to (version, number, domain, address, routing id, mechanism, public key).

        The User-Id of an accepted caller is its role; libzmq attaches it to every message of the connection.
        """
        version, number, domain, address, _, mechanism, *credentials = [bytes(frame) for frame in question]
        role = ""
        if (version, domain, mechanism, len(credentials)) == (VERSION, ZAP_DOMAIN, b"CURVE", 1):
            role = self._keys.role_of(credentials[0])
        if role:
            return [VERSION, number, OK, b"", role.encode(), b""]
        seen = f"the caller at {address.decode(errors='replace')} shows no key of {', '.join(self._keys.callers) or 'any role'}"
        self._refused(f"{KEY_DIFFERS}, or the role may not call {self._keys.role}: {seen}")
        return [VERSION, number, REFUSED, b"no such key", b"", b""]
