"""Weight sync to engines in processes of their own: the trainer's side keeps each published version, whole, in host memory.

A version is gathered once, by all trainer ranks together; what follows takes no collective. So an engine that comes later,
or again, can be given the version in force while the trainer is in the middle of the next step.
"""

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from asyncrl.errors import WeightSyncError
from asyncrl.weight_sync.digest import digest
from asyncrl.weight_sync.image import Image, pack
from asyncrl.weight_sync.in_place import gather_flat


class BroadcastSync:
    """WeightSync that keeps what is published for those who send it to the engines.

    ``publish`` runs on the device thread; ``borrow`` and ``give_back`` may come from any other meanwhile. There are at most two
    versions in memory, and a third while an old one is still on its way to an engine.
    """

    def __init__(self, bucket: int, *, dtype: torch.dtype | None = None, keep: bool = True) -> None:
        """``bucket``: most bytes of a bucket. ``dtype``: that of the engines' weights. ``keep``: whether this rank sends to an engine."""
        self._bucket, self._dtype, self._keep = bucket, dtype, keep
        self._lock = threading.Lock()
        self._image: Image | None = None
        self._spare: Tensor | None = None
        self._borrowed: list[Image] = []

    def publish(self, version: int, parameters: Sequence[tuple[str, Tensor]]) -> str:
        weights = gather_flat(parameters, dtype=self._dtype)
        if not self._keep:
            return digest(weights)
        with self._lock:
            memory, self._spare = self._spare, None
        image = pack(version, weights, self._bucket, memory)
        with self._lock:
            old, self._image = self._image, image
            if old is not None and old not in self._borrowed:
                self._spare = old.run
        return image.manifest.digest

    def borrow(self) -> Image:
        """The version in force; its memory stays as it is until it is given back. Raises WeightSyncError before the first."""
        with self._lock:
            if self._image is None:
                raise WeightSyncError("no version has been published yet")
            self._borrowed.append(self._image)
            return self._image

    def give_back(self, image: Image) -> None:
        """Its reader has finished."""
        with self._lock:
            self._borrowed.remove(image)
            if image is not self._image and image not in self._borrowed and self._spare is None:
                self._spare = image.run
