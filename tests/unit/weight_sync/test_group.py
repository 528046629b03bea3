"""The group of two: bytes arrive, an end of one member is seen by the other, and a group can be made again."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from asyncrl.errors import TransferInterrupted
from asyncrl.weight_sync.group import RECEIVER, SENDER, Invitation, StorePlace, WeightGroup


@pytest.fixture
def store() -> Iterator[StorePlace]:
    master = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    yield StorePlace("127.0.0.1", master.port)
    del master


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def pair(store: StorePlace, threads: ThreadPoolExecutor, name: str = "g") -> tuple[WeightGroup, WeightGroup]:
    """Both members, joined at the same time."""
    invitation = Invitation(store, name, "gloo")
    ends = [threads.submit(WeightGroup, invitation, member, peer) for member, peer in ((SENDER, "engine-0"), (RECEIVER, "rank0"))]
    return ends[0].result(), ends[1].result()


def failure(action: Callable[[], object]) -> TransferInterrupted:
    with pytest.raises(TransferInterrupted) as caught:
        action()
    return caught.value


def test_bytes_arrive_in_order_and_the_default_group_is_not_needed(store: StorePlace, threads: ThreadPoolExecutor) -> None:
    sender, receiver = pair(store, threads)
    sent = torch.arange(3 << 20, dtype=torch.uint8)
    held = torch.zeros_like(sent)
    parts = [slice(0, 1 << 20), slice(1 << 20, 1 << 20 | 5), slice(1 << 20 | 5, 3 << 20)]

    def send() -> None:
        for part in parts:
            sender.send(sent[part])

    sending = threads.submit(send)
    for part in parts:
        receiver.receive(held[part])
    sending.result()
    assert torch.equal(sent, held)
    assert not dist.is_initialized()


@pytest.mark.parametrize("leaver", [SENDER, RECEIVER])
def test_who_waits_for_a_member_that_leaves_is_told_at_once(store: StorePlace, threads: ThreadPoolExecutor, leaver: int) -> None:
    ends = pair(store, threads)
    bucket = torch.zeros(32 << 20, dtype=torch.uint8)
    other = ends[1 - leaver]
    waiting = threads.submit(failure, lambda: other.receive(bucket) if leaver == SENDER else other.send(bucket))
    began = time.monotonic()
    ends[leaver].close()
    error = waiting.result()
    assert time.monotonic() - began < 3 * 2.0
    assert error.peer == ("rank0" if leaver == SENDER else "engine-0")
    assert "bytes" in error.cause
    assert "was closed" in failure(lambda: other.send(bucket)).cause
    ends[leaver].close()
    # Another group between the same two, at the same store.
    sender, receiver = pair(store, threads, "h")
    sending = threads.submit(sender.send, bucket + 1)
    receiver.receive(bucket)
    sending.result()
    assert int(bucket.min()) == 1


def test_a_bucket_has_a_limit(store: StorePlace, threads: ThreadPoolExecutor) -> None:
    _, receiver = pair(store, threads)
    error = failure(lambda: receiver.receive(torch.zeros(4, dtype=torch.uint8), 0.2))
    assert error.cause.startswith("4 bytes did not come: ")
    assert "/" not in error.cause.partition(": ")[2], "no path of torch's sources"


def test_who_waits_alone_is_told_whom_for(store: StorePlace) -> None:
    error = failure(lambda: WeightGroup(Invitation(store, "alone", "gloo"), SENDER, "engine-1", seconds=0.5))
    assert error.peer == "engine-1"
    assert error.cause.startswith("no group could be made with it: ")
    gone = StorePlace("127.0.0.1", 9)
    assert "no group could be made" in failure(lambda: WeightGroup(Invitation(gone, "x", "gloo"), SENDER, "e", seconds=0.5)).cause


def test_closed_groups_leave_no_thread_and_no_descriptor(store: StorePlace, threads: ThreadPoolExecutor) -> None:
    def ends() -> None:
        for end in pair(store, threads, name=f"g{len(counts)}"):
            end.close()

    counts: list[tuple[int, int]] = []
    for _ in range(4):
        ends()
        counts.append((len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))))
    assert counts[-1][0] <= counts[0][0] + 1, counts
    assert counts[-1][1] <= counts[0][1] + 1, counts
    assert threading.active_count() < 50
