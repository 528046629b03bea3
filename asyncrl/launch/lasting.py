"""What lives as long as its process, and is therefore not the garbage collector's business."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """A block that makes objects for the life of the process, as large imports do.

    They are half a million: collections while they come are in vain, and later ones, the last at the exit of the process among
    them, leave them out. Garbage in cycles that the block makes is kept, so it must not build models.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()
