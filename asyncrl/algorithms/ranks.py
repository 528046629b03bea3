"""What the functions of this floor need to know of the other data-parallel ranks, as arguments: they do no communication."""

import hashlib
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class AllGather(Protocol):
    """Joins the ranks. Collective: every rank calls it equally often, with as many columns and the same dtype."""

    def __call__(self, values: Tensor, /) -> Tensor:
        """[n, c] of this rank -> [sum of n, c] of all ranks, in rank order, alike on all of them; n may differ."""
        ...


def alone(values: Tensor, /) -> Tensor:
    """The one rank there is."""
    return values


def total(values: Tensor, gather: AllGather) -> Tensor:
    """The sum over all ranks of [c] numbers, in float64."""
    return gather(values.double()[None]).sum(0)


def row_seeds(seed: int, place: Sequence[int], keys: Sequence[str]) -> Tensor:
    """One number [N] int64 per row out of the seed of the run, a place in it (step, pass) and the row's key alone."""
    spots = [":".join(map(str, (seed, *place, key))).encode() for key in keys]
    numbers = [int.from_bytes(hashlib.blake2b(spot, digest_size=8).digest(), "little", signed=True) for spot in spots]
    return torch.tensor(numbers, dtype=torch.int64)


def token_draws(seeds: Tensor, width: int) -> Tensor:
    """Pseudo-random numbers [N, width] int64 out of ``seeds`` [N] and the column alone, by the mixer of SplitMix64.

    They are what "at random" means where a choice must not depend on the cut of a batch, on the row order or on the number
    of ranks: the tokens with the smallest draws are chosen. https://doi.org/10.1145/2714064.2660195
    """
    columns = torch.arange(1, width + 1, device=seeds.device)
    mixed = seeds[:, None] + columns * _signed(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ _shifted(mixed, shift)) * _signed(factor)
    return mixed ^ _shifted(mixed, 31)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _shifted(values: Tensor, bits: int) -> Tensor:
    """A right shift that fills with zeros; torch's repeats the sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)
