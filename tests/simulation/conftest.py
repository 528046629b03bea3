"""Async tests in this folder run on the simulated loop."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from asyncrl.runtime.simulation import SimulatedLoop


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The only loop there is here."""
    return {"simulated": SimulatedLoop}
