"""``Compaction``: when the oldest file of a shard's journal is to be written anew, and which rows lie in it."""

from asyncrl.transfer_queue.journal import Journal, JournalFile
from asyncrl.transfer_queue.segments import Row
from asyncrl.transfer_queue.table import ShardTable

MOVED_ROWS = 256
"""Rows of one record when rows are copied forward or into a snapshot."""
SPARE_BYTES = 64 << 20
"""Dead bytes of a journal below which it is left alone."""


class Compaction:
    """Passes over the files of a journal, one after another, the oldest first.

    A pass begins when more than half of the journal seems dead, and ends as soon as that is no longer so. How much is alive is
    known of packed values only, not of keys, tags and offsets. So a pass that has written all files anew takes what is left
    as alive: the next one begins when the journal has doubled, or when rows are gone.
    """

    def __init__(self, table: ShardTable, journal: Journal) -> None:
        self._table, self._journal = table, journal
        self._last = 0
        """The last file of this pass, 0 between passes."""
        self._beside, self._rows = 0, 1
        """Bytes beside the values, and rows, when a pass had written all files anew."""
        self._file = 0
        self._chunks: list[tuple[str, list[str]]] = []
        """Partitions and keys of rows that lay in file ``_file`` when it was looked through, and have not been moved."""

    def due(self) -> JournalFile | None:
        """The file to write anew next, None where nothing is to be done now."""
        journal, alive = self._journal, self._alive()
        if journal.size - alive < max(alive, SPARE_BYTES):
            self._last = 0
            return None
        oldest = journal.oldest()
        if oldest is None:
            return None
        if self._last and oldest.number > self._last:
            self._beside, self._rows = journal.size - self._table.stored_bytes, max(1, self._table.rows)
            self._last = 0
            return None
        self._last = self._last or journal.current
        return oldest

    def _alive(self) -> int:
        """Bytes of the journal that are taken as alive."""
        return self._table.stored_bytes + self._beside * min(self._table.rows, self._rows) // self._rows

    def rows_in(self, file: JournalFile) -> tuple[str, list[str]] | None:
        """A partition and some of its rows that still lie in the file, at most ``MOVED_ROWS``; None when none is left.

        No row comes to lie in a file that is sealed: all rows are looked through once for each file.
        """
        if file.number != self._file:
            self._file, self._chunks = file.number, self._looked_through(file.number)
        while self._chunks:
            partition, keys = self._chunks[-1]
            found = self._table.partitions.get(partition)
            left = [key for key in keys if key in found.rows and lies_in(found.rows[key], file.number)] if found else []
            if left:
                return partition, left
            self._chunks.pop()
        return None

    def _looked_through(self, number: int) -> list[tuple[str, list[str]]]:
        chunks = []
        for partition, part in self._table.partitions.items():
            keys = [key for key, row in part.rows.items() if lies_in(row, number)]
            chunks += [(partition, keys[start : start + MOVED_ROWS]) for start in range(0, len(keys), MOVED_ROWS)]
        return chunks[::-1]


def lies_in(row: Row, number: int) -> bool:
    """Whether a journal's file holds any of a row."""
    return row.file == number or any(segment.file == number for segment, _ in row.cells.values())
