"""A short name for a set of weights: equal for equal weights, whoever computes it.

Each tensor is read as integers of its width and summed twice, plainly and weighted with the position, both modulo 2^64. That
is exact, so the order of the additions, the device and the number of ranks that held the pieces do not matter; it needs
one pass on the device and brings two numbers a tensor to the host. It finds accidents, not forgeries.
"""

from collections.abc import Iterable
from hashlib import blake2b

import torch
from torch import Tensor

CHUNK = 1 << 16
"""Elements widened to 64 bit at a time on a CPU: half a MiB, which stays in its cache."""
DEVICE_CHUNK = 1 << 22
"""The same on a GPU: 32 MiB, so that there are few launches."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def digest(weights: Iterable[tuple[str, Tensor]]) -> str:
    """32 hexadecimal digits for whole (not sharded) tensors with their names, in any order.

    Name, dtype, shape and every bit count: -0.0 differs from 0.0, bfloat16 from float32.
    """
    named = sorted(weights, key=lambda pair: pair[0])
    sums = [total for _, tensor in named for total in _sums(tensor)]
    numbers = torch.stack(sums).cpu().tolist() if sums else []
    text = blake2b(digest_size=16)
    for (name, tensor), plain, weighted in zip(named, numbers[::2], numbers[1::2], strict=True):
        text.update(f"{name}|{tensor.dtype}|{list(tensor.shape)}|{plain}|{weighted}\n".encode())
    return text.hexdigest()


def _sums(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Plain and position-weighted sum of the bits, int64, wrapping."""
    bits = tensor.detach().contiguous().view(-1).view(_INTEGERS[tensor.element_size()])
    size = CHUNK if tensor.device.type == "cpu" else DEVICE_CHUNK
    places = torch.arange(1, min(size, len(bits)) + 1, device=tensor.device)
    plain = weighted = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for first in range(0, len(bits), size):
        part = bits[first : first + size].long()
        total = part.sum()
        # The position of an element is its place in the part and those of all parts before.
        plain, weighted = plain + total, weighted + (part * places[: len(part)]).sum() + first * total
    return plain, weighted
