"""Actors over MessagePack and ZeroMQ, with supervised processes. Stands alone: no torch, no numpy, no configuration."""

from asyncrl.runtime.actor import Actor, ActorContext, endpoint
from asyncrl.runtime.codec import decode, encode, register_codec
from asyncrl.runtime.curve import Keyring
from asyncrl.runtime.events import EventWriter
from asyncrl.runtime.forced_exit import ForcedExit
from asyncrl.runtime.group import ActorGroup
from asyncrl.runtime.host import Host, RealHost
from asyncrl.runtime.liveness import Liveness
from asyncrl.runtime.memory import MemoryNetwork
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.rendezvous import AddressRendezvous, Board, MemoryRendezvous, Rendezvous
from asyncrl.runtime.security import make_token, private_folder
from asyncrl.runtime.supervisor_client import SupervisorClient
from asyncrl.runtime.supervisor_messages import ProcessDeath, ProcessSpec, Restarted
from asyncrl.runtime.system import ActorSystem
from asyncrl.runtime.tasks import all_of, running, shielded
from asyncrl.runtime.waits import Wait, WaitRegistry
from asyncrl.runtime.watching import Watching

__all__ = [
    "Actor",
    "ActorAddress",
    "ActorContext",
    "ActorGroup",
    "ActorRef",
    "ActorSystem",
    "EventWriter",
    "ForcedExit",
    "Host",
    "Keyring",
    "Liveness",
    "MemoryNetwork",
    "AddressRendezvous",
    "Board",
    "MemoryRendezvous",
    "ProcessDeath",
    "ProcessSpec",
    "RealHost",
    "Rendezvous",
    "Restarted",
    "SupervisorClient",
    "Wait",
    "WaitRegistry",
    "Watching",
    "all_of",
    "decode",
    "encode",
    "endpoint",
    "make_token",
    "private_folder",
    "register_codec",
    "running",
    "shielded",
]
