"""A process group of two: a trainer rank that sends, and an engine process that receives.

It is built beside the default group, from a store and a prefix of its own, so that it can be closed and built again
without the other ranks: one of them only learns of an engine's death by a lost connection in this group.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Literal, Protocol, cast

import msgspec
import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, TCPStore, Work

from asyncrl.errors import TransferInterrupted

SENDER, RECEIVER = 0, 1
JOIN_SECONDS = 30.0
"""How long one member waits for the other when a group is built."""
BUCKET_SECONDS = 120.0
"""How long a bucket may be on its way."""


class StorePlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The store at which the two meet; it learns addresses only."""

    host: str
    port: int


class Invitation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group to join. No other group of the job has its ``name``."""

    store: StorePlace
    name: str
    backend: Literal["gloo", "nccl"]


class Pair(Protocol):
    """What is used of a process group of two."""

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> Work: ...

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> Work: ...

    def abort(self) -> None: ...


class WeightGroup:
    """One member of the group. Every method but ``interrupt`` blocks; one thread calls them.

    What goes wrong raises TransferInterrupted, which names the ``peer``; the group is of no use then, and is to be closed.
    """

    def __init__(self, invitation: Invitation, member: int, peer: str, device: str = "cpu", seconds: float = JOIN_SECONDS) -> None:
        """Join; returns when the other has joined too. ``device`` holds what is on its way over NCCL."""
        self.name, self._peer, self._other = invitation.name, peer, 1 - member
        self._device = torch.device(device) if invitation.backend == "nccl" else None
        self._window = torch.empty(0, dtype=torch.uint8)
        timeout = timedelta(seconds=seconds)
        join = _gloo if self._device is None else _nccl
        try:
            place = invitation.store
            store = TCPStore(place.host, place.port, is_master=False, wait_for_workers=False, timeout=timeout)
            self._group: Pair | None = join(PrefixStore(invitation.name, store), member, timeout)
        except RuntimeError as error:
            raise TransferInterrupted(peer, f"no group could be made with it: {_first_line(error)}") from error

    def send(self, bucket: Tensor, seconds: float = BUCKET_SECONDS) -> None:
        """Send ``bucket``, uint8 in host memory; returns when it has left."""
        source = bucket if self._device is None else self._on_device(len(bucket)).copy_(bucket)
        self._run(f"{len(bucket)} bytes could not be sent", lambda group: group.send([source], self._other, 0), seconds)

    def receive(self, bucket: Tensor, seconds: float = BUCKET_SECONDS) -> None:
        """Fill ``bucket``, uint8 in host memory, with what the other sends."""
        target = bucket if self._device is None else self._on_device(len(bucket))
        self._run(f"{len(bucket)} bytes did not come", lambda group: group.recv([target], self._other, 0), seconds)
        if target is not bucket:
            bucket.copy_(target)

    def interrupt(self) -> None:
        """End what NCCL waits for. gloo needs no such call: the connection breaks when the other member closes or ends. Any thread."""
        if self._device is not None and self._group is not None:
            self._group.abort()

    def close(self) -> None:
        """Leave. What the other has under way fails at once. Harmless twice."""
        self._group = None
        self._window = torch.empty(0, dtype=torch.uint8)

    def _run(self, failed: str, order: Callable[[Pair], Work], seconds: float) -> None:
        if self._group is None:
            raise TransferInterrupted(self._peer, "the group with it was closed")
        try:
            order(self._group).wait(timedelta(seconds=seconds))
        except RuntimeError as error:
            self.close()
            raise TransferInterrupted(self._peer, f"{failed}: {_first_line(error)}") from error

    def _on_device(self, size: int) -> Tensor:
        if len(self._window) < size:
            self._window = torch.empty(size, dtype=torch.uint8, device=self._device)
        return self._window[:size]


def _gloo(store: Store, member: int, timeout: timedelta) -> Pair:
    """Over the interface that GLOO_SOCKET_IFNAME names; without it over the loopback, as everything on one node."""
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    named = "GLOO_SOCKET_IFNAME" in os.environ
    options._devices = [ProcessGroupGloo.create_default_device() if named else ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timeout
    return cast(Pair, ProcessGroupGloo(store, member, 2, options))


def _nccl(store: Store, member: int, timeout: timedelta) -> Pair:
    from torch._C._distributed_c10d import ProcessGroupNCCL  # not in a build for CPUs

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return cast(Pair, ProcessGroupNCCL(store, member, 2, options))


def _first_line(error: BaseException) -> str:
    """What was seen, without torch's place in its own sources."""
    text = str(error).partition("\n")[0]
    return text.rpartition("] ")[2] if text.startswith("[/") else text
