"""Metrics read from masked tensors."""

import math
import statistics

import pytest
import torch

from asyncrl.algorithms.readings import deviation, effective_size, largest, mean, read, smallest
from asyncrl.metrics import merge, scalars

VALUES, WHERE = torch.tensor([[1.0, math.nan], [4.0, 7.0]]), torch.tensor([[1, 0], [1, 1]])
READINGS = {
    "mean": mean,
    "max": largest,
    "min": smallest,
    "std": deviation,
    "sample": lambda values, where: deviation(values, where, sample=True),
    "size": effective_size,
}


def test_every_reading_by_hand_and_in_parts() -> None:
    expected = {
        "mean": 4.0,
        "max": 7.0,
        "min": 1.0,
        "std": statistics.pstdev([1, 4, 7]),
        "sample": 3.0,
        "size": 144 / (3 * 66),
    }
    whole = read({name: reading(VALUES, WHERE) for name, reading in READINGS.items()})
    assert scalars(whole) == pytest.approx(expected)
    parts = [read({name: reading(VALUES[row], WHERE[row]) for name, reading in READINGS.items()}) for row in (0, 1)]
    nothing = read({name: reading(VALUES, torch.zeros_like(WHERE)) for name, reading in READINGS.items()})
    assert scalars(merge([nothing, *parts])) == pytest.approx(expected)


def test_fractions_are_means_of_truth_values() -> None:
    assert read({"share": mean(VALUES > 2, WHERE)})["share"].value() == pytest.approx(2 / 3)
    assert read({}) == {}
