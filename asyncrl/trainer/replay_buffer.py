"""The finished prompt groups, as the queue's watch reports them: nobody polls."""

import asyncio
from collections.abc import Callable

from asyncrl.errors import RunFailed
from asyncrl.trainer.groups import GroupTable
from asyncrl.transfer_queue.client import Change, Snapshot, TransferQueue
from asyncrl.transfer_queue.keys import placement


class ReplayBuffer:
    """Waits for groups of one partition.

    consumes: watch events of the markers in ``partition_id``
    produces: settled groups
    waits for: the next event that changes a group
    unblocked by: a put with which an agent worker goes on with a group or ends it
    """

    def __init__(self, queue: TransferQueue, partition_id: str, say: Callable[[str], None], stall_after: float = 60.0) -> None:
        self.partition_id = partition_id
        self.table = GroupTable()
        self.lost: dict[str, None] = {}
        """Groups that went with a shard since somebody last looked."""
        self._queue = queue
        self._say = say
        self._stall_after = stall_after
        self._changed = asyncio.Event()
        self._ended: str | None = None

    async def run(self) -> None:
        """Follow the watch until cancelled; when it ends on its own, every waiter learns it."""
        try:
            async for event in self._queue.watch(self.partition_id, where={"is_prompt": True}):
                self.hear(event)
        finally:
            self._ended = f"the watch on partition {self.partition_id!r} ended"
            self.wake()

    def hear(self, event: Snapshot | Change) -> None:
        """Take over what the watch says."""
        shards = self._queue.shards
        self.lost |= dict.fromkeys(self.table.apply(event, lambda uid: placement(uid, shards)))
        self.wake()

    def wake(self) -> None:
        """Something has changed: whoever waits looks again."""
        self._changed.set()

    async def next_change(self, waiting_for: str, seconds: float | None = None) -> None:
        """Wait until a group has changed since the last wait, at most ``seconds``.

        Says from time to time what is waited for, so that no wait is silent. Raises RunFailed when the watch has ended.
        """
        if self._ended is not None:
            raise RunFailed(f"cannot fill the batch: {waiting_for}, {self.table.describe()}; {self._ended}")
        left = seconds
        while not self._changed.is_set() and (left is None or left > 0):
            pause = self._stall_after if left is None else min(self._stall_after, left)
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                left = None if left is None else left - pause
                if pause == self._stall_after:
                    self._say(f"still waiting for groups in {self.partition_id!r}: {waiting_for}; {self.table.describe()}")
        self._changed.clear()
