"""``Watcher``: what one subscriber of one shard has not been told yet. Pure bookkeeping, no waiting."""

from asyncrl.transfer_queue.rows import Tag, matches

OVERFLOW = 65536
"""Untold rows above which a watcher starts over with a snapshot."""


class Watcher:
    """Untold changes of one partition, merged by row. A stale watcher needs a snapshot instead; a new one is stale."""

    __slots__ = ("partition", "pending", "seq", "stale", "where")

    def __init__(self, partition: str, where: Tag | None) -> None:
        self.partition, self.where = partition, where
        self.stale = True
        self.seq = -1
        self.pending: dict[str, Tag | None] = {}

    def offer(self, key: str, old: Tag | None, new: Tag | None) -> bool:
        """Note that a row went from ``old`` to ``new`` (None: no row). Returns whether there is something to tell."""
        if not self.stale:
            if new is not None and matches(new, self.where):
                self.pending[key] = new
            elif old is not None and matches(old, self.where):
                self.pending[key] = None
            if len(self.pending) > OVERFLOW:
                self.pending.clear()
                self.stale = True
        return self.stale or bool(self.pending)

    def take(self) -> dict[str, Tag | None]:
        """The untold changes, which are told from now on."""
        taken, self.pending = self.pending, {}
        return taken

    def next_seq(self) -> int:
        """The number of the next event: 0, 1, 2 and so on."""
        self.seq += 1
        return self.seq
