"""``Losses``: which fields of which rows were written, and cannot be read back from disk."""

from collections.abc import Iterable


class Losses:
    """Known by partition, key and field where the header of a damaged record is whole; else there is some loss ``unnamed``."""

    def __init__(self) -> None:
        self.unnamed = False
        self._fields: dict[tuple[str, str], dict[str, None]] = {}

    def __bool__(self) -> bool:
        return self.unnamed or bool(self._fields)

    def add(self, partition: str, keys: Iterable[str], field: str) -> None:
        """A field of these rows is lost."""
        for key in keys:
            self._fields.setdefault((partition, key), {})[field] = None

    def written(self, partition: str, keys: Iterable[str], fields: Iterable[str]) -> None:
        """These fields of these rows have been written again."""
        names = list(fields)
        for key in keys:
            lost = self._fields.get((partition, key))
            if lost is not None:
                for name in names:
                    lost.pop(name, None)
                if not lost:
                    del self._fields[partition, key]

    def cleared(self, partition: str, keys: Iterable[str]) -> None:
        """These rows are not wanted any more."""
        for key in keys:
            self._fields.pop((partition, key), None)

    def hold(self, partition: str, key: str, field: str | None = None) -> bool:
        """Whether this field of the row, or any, is known to be lost."""
        lost = self._fields.get((partition, key), {})
        return bool(lost) if field is None else field in lost
