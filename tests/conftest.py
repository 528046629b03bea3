"""What holds for every test."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def light_collections() -> None:
    """Puts aside what earlier modules made: the full collections of the tests for leaks then look at this module's objects alone."""
    gc.collect()
    gc.freeze()
