"""How the ranks of a job find one another through torchrun's store: addresses, pids and paths, never a secret."""

import threading
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from asyncrl.errors import RunFailed
from asyncrl.launch.environment import Place
from asyncrl.launch.interface import Interface
from asyncrl.launch.run_folder import RunFolder
from asyncrl.launch.store import StoreRendezvous
from asyncrl.runtime.host import RealHost
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.security import tcp_endpoint

STORE_SECONDS = 60.0
"""How long a connection to torchrun's store may take; it exists before the ranks do."""

REFUSAL_SECONDS = 40.0
"""How long a rank with a wrong configuration waits for the other nodes to hear of it."""


class JobInfo(msgspec.Struct, frozen=True):
    """What rank 0 tells the others. On one node ``sockets`` holds the token, readable by this user alone; on several it is "".

    ``nonce`` is a name that no other start of any job has.
    """

    run_folder: str
    sockets: str
    nonce: str
    refusal: str = ""


class Card(msgspec.Struct, frozen=True):
    """What a rank tells the others when it can be reached, or why it cannot.

    ``supervisor`` is the pid of its node's, or 0; ``machine`` the name that the kernel gives to where it runs.
    """

    pid: int
    control: ActorAddress | None
    supervisor: int = 0
    refusal: str = ""
    machine: str = ""


class Peer(msgspec.Struct, frozen=True):
    """Another rank: its name in words, its pid, how to reach it, and the machine that it runs on."""

    name: str
    pid: int
    supervisor: int
    control: ActorAddress
    machine: str


@dataclass(frozen=True, slots=True)
class Meeting:
    """What the ranks have agreed on."""

    folder: RunFolder
    endpoint: str
    token: bytes
    attempt: str


class Board:
    """The part of torchrun's store that belongs to this attempt."""

    def __init__(self, store: Store, place: Place, host: RealHost) -> None:
        self.store, self.host, self._place = store, host, place
        self.rendezvous = StoreRendezvous(PrefixStore(f"asyncrl/{place.attempt}", store), host)

    async def job(self) -> JobInfo:
        """Rank 0's word. Raises RunFailed when it refuses to start."""
        info = msgspec.msgpack.decode(await self.rendezvous.wait("job"), type=JobInfo)
        if info.refusal:
            self.rendezvous.set(f"read/{self._place.node}", b"")
            raise RunFailed(f"{self._place.name_of(0)} refuses to start: {info.refusal}")
        return info

    async def peer(self, rank: int) -> Peer:
        """Another rank, once it can be reached. Raises RunFailed when it refuses to start."""
        card = msgspec.msgpack.decode(await self.rendezvous.wait(f"card/{rank}"), type=Card)
        name = self._place.name_of(rank)
        if card.control is None:
            self.rendezvous.set(f"read/{self._place.node}", b"")
            raise RunFailed(f"{name} refuses to start: {card.refusal}")
        return Peer(name, card.pid, card.supervisor, card.control, card.machine)

    def tell_job(self, info: JobInfo) -> None:
        """Rank 0 has a run folder."""
        self.rendezvous.set("job", msgspec.msgpack.encode(info))

    def tell_card(self, card: Card) -> None:
        """This rank can be reached."""
        self.rendezvous.set(f"card/{self._place.rank}", msgspec.msgpack.encode(card))


def open_store(place: Place) -> Store:
    """Connect to torchrun's store. Blocking."""
    store: Store = next(rendezvous("env://", place.rank, place.world_size, timeout=timedelta(seconds=STORE_SECONDS)))[0]
    return store


async def meet(board: Board, place: Place, folder: RunFolder | None, sockets: str, token: bytes, interface: Interface | None) -> Meeting:
    """Agree on the run folder, on where to listen, and on what the HELLO carries.

    ``folder`` is rank 0's. ``sockets`` and, on one node, ``token`` are too; on several every rank has derived the token from the
    job's key, and listens at its ``interface``.
    """
    if folder is not None:
        if interface is None:
            token_file(sockets).write_bytes(token)
        info = JobInfo(str(folder.path), sockets if interface is None else "", board.host.entropy(8).hex())
        board.tell_job(info)
    else:
        info = await board.job()
        folder = RunFolder.join(info.run_folder, place)
    attempt = f"{place.attempt}-{info.nonce}"
    if interface is not None:
        return Meeting(folder, tcp_endpoint(interface.address, interface.ports), token, attempt)
    return Meeting(folder, f"ipc://{info.sockets}/rank{place.rank}.sock", token or token_file(info.sockets).read_bytes(), attempt)


def token_file(sockets: str) -> Path:
    """Where rank 0 leaves the job token for the ranks of its node: in the folder of sockets, which only this user enters."""
    return Path(sockets) / "token"


def post_refusal(place: Place, text: str) -> None:
    """Tell the other nodes that this one does not start, and wait until they have heard of it, or ``REFUSAL_SECONDS``.

    The caller must leave by ``os._exit``: the store may be gone, and who waits for it cannot be stopped.
    """

    def post() -> None:
        store = PrefixStore(f"asyncrl/{place.attempt}", open_store(place))
        refusal: msgspec.Struct = Card(0, None, refusal=text) if place.rank else JobInfo("", "", "", text)
        store.set(f"card/{place.rank}" if place.rank else "job", msgspec.msgpack.encode(refusal))  # type: ignore[arg-type]
        store.set(f"read/{place.node}", b"")  # type: ignore[arg-type]
        store.wait([f"read/{node}" for node in range(place.nodes)], timedelta(seconds=REFUSAL_SECONDS))

    poster = threading.Thread(target=post, daemon=True)
    poster.start()
    poster.join(REFUSAL_SECONDS)
