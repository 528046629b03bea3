"""The finished prompt groups, as the queue's watch reports them: nobody polls."""

import asyncio
from collections.abc import Callable

from asyncrl.errors import RunFailed
from asyncrl.trajectory import Status
from asyncrl.transfer_queue.client import Change, Snapshot, TransferQueue


class GroupTable:
    """Pure state: which issued groups wait, run or have settled."""

    def __init__(self) -> None:
        self._expected: dict[str, int] = {}
        self._status: dict[str, Status] = {}
        self._causes: dict[str, list[str]] = {}

    def expect(self, uid: str, place: int) -> None:
        """A group was issued; ``place`` is its place in the order of issue."""
        self._expected[uid] = place
        self._status.setdefault(uid, Status.PENDING)

    def apply(self, event: Snapshot | Change) -> None:
        """Take over what a watch event says of the markers."""
        for uid, tag in event.rows.items():
            if tag is None:
                self._status.pop(uid, None)
            else:
                self._status[uid] = Status(tag["status"])
                self._causes[uid] = list(tag.get("failures", []))

    def settled(self) -> list[str]:
        """The uids of settled groups, oldest issue first."""
        ready = [uid for uid in self._expected if self._status.get(uid, Status.PENDING).settled]
        return sorted(ready, key=self._expected.__getitem__)

    def take(self, uids: list[str]) -> dict[str, list[str]]:
        """Forget these groups; return what failed in each."""
        for uid in uids:
            del self._expected[uid]
            self._status.pop(uid, None)
        return {uid: self._causes.pop(uid, []) for uid in uids}

    def describe(self) -> str:
        """One line: how many groups are in which status."""
        counts = dict.fromkeys(Status, 0)
        for uid in self._expected:
            counts[self._status.get(uid, Status.PENDING)] += 1
        return ", ".join(f"{count} {status}" for status, count in counts.items() if count) or "nothing in flight"


class ReplayBuffer:
    """Waits for groups of one partition.

    consumes: watch events of the markers in ``partition_id``
    produces: settled groups, oldest issue first
    waits for: the next event that settles a group
    unblocked by: the guarded put with which an agent worker ends a group
    """

    def __init__(self, queue: TransferQueue, partition_id: str, say: Callable[[str], None], stall_after: float = 60.0) -> None:
        self.partition_id = partition_id
        self.table = GroupTable()
        self._queue = queue
        self._say = say
        self._stall_after = stall_after
        self._changed = asyncio.Event()
        self._ended: str | None = None

    async def run(self) -> None:
        """Follow the watch until cancelled; when it ends on its own, every waiter learns it."""
        try:
            async for event in self._queue.watch(self.partition_id, where={"is_prompt": True}):
                self.table.apply(event)
                self._changed.set()
        finally:
            self._ended = f"the watch on partition {self.partition_id!r} ended"
            self._changed.set()

    async def take(self, count: int) -> dict[str, list[str]]:
        """Wait for ``count`` settled groups; return the oldest ones with what failed in them, in the order of issue.

        Raises RunFailed when the watch has ended: then no group can settle any more.
        """
        while len(ready := self.table.settled()) < count:
            if self._ended is not None:
                raise RunFailed(f"cannot fill the batch: {len(ready)} of {count} groups, {self.table.describe()}; {self._ended}")
            self._changed.clear()
            await self._next_change(len(ready), count)
        return self.table.take(ready[:count])

    async def _next_change(self, ready: int, count: int) -> None:
        """Wait for the next event; say every ``stall_after`` seconds what is waited for, so that no wait is silent."""
        while not self._changed.is_set():
            try:
                async with asyncio.timeout(self._stall_after):
                    await self._changed.wait()
            except TimeoutError:
                self._say(f"still waiting for groups in {self.partition_id!r}: {ready} of {count} settled; {self.table.describe()}")
