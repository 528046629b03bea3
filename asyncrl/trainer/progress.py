"""Whether a batch comes nearer: how many issues in a row were in vain."""

from collections.abc import Iterable


class Progress:
    """Rows of issues that brought nothing, in the order of issue. Pure state.

    An issue hands a prompt out under a lease. It was in vain when its group was dropped, or when its lease has ended; one that
    still runs, or whose group waits to be trained, ends the row on either side. So a slow group is not taken for none.
    """

    def __init__(self, limit: int) -> None:
        """``limit``: so many issues in a row may be in vain."""
        self.limit = limit
        self.longest = 0
        """Issues of the longest row since the last batch."""
        self._issued = 0
        self._numbers: dict[str, int] = {}
        self._rows: dict[int, int] = {}
        """The length of each row, at its first and at its last number."""

    @property
    def stopped(self) -> bool:
        """Whether more in a row were in vain than may be."""
        return self.longest > self.limit

    def begin(self) -> None:
        """The next batch is awaited; the one before was progress."""
        self._rows.clear()
        self.longest = 0

    def issue(self, uid: str) -> None:
        """A prompt is issued, or issued again."""
        self._numbers[uid] = self._issued
        self._issued += 1

    def lose(self, uids: Iterable[str]) -> None:
        """The last issues of these prompts were in vain."""
        for uid in uids:
            number = self._numbers.pop(uid)
            before, after = self._rows.pop(number - 1, 0), self._rows.pop(number + 1, 0)
            length = before + 1 + after
            self._rows[number - before] = self._rows[number + after] = length
            self.longest = max(self.longest, length)

    def train(self, uids: Iterable[str]) -> None:
        """The groups of these prompts were trained."""
        for uid in uids:
            del self._numbers[uid]
