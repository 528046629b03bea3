"""The ranks that wait between the tests of this folder are gone when it is left."""

import pytest

from tests.processes.warm_ranks import close_warm_ranks


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Ends them with the last test of the folder."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        close_warm_ranks()
