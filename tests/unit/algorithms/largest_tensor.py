"""Watches what torch allocates in a block, to hold a promise about memory without measuring it."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LargestTensor(TorchDispatchMode):
    """The largest number of elements that any operation gave back, by dtype; views of its arguments apart."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements: dict[torch.dtype, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {each.untyped_storage().data_ptr() for each in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for made in _tensors(result):
            if made.untyped_storage().data_ptr() not in given:
                self.elements[made.dtype] = max(self.elements.get(made.dtype, 0), made.numel())
        return result


def _tensors(values: Any) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, dict):
        return [each for value in values.values() for each in _tensors(value)]
    if isinstance(values, tuple | list):
        return [each for value in values for each in _tensors(value)]
    return []
