"""What a digest sees and what it does not."""

import pytest
import torch

from asyncrl.weight_sync import digest as module
from asyncrl.weight_sync.digest import digest

WEIGHTS = [("a", torch.arange(6.0).view(2, 3)), ("b", torch.tensor([1.5, -2.0], dtype=torch.bfloat16)), ("c", torch.zeros(0, 4))]


def changed(name: str, value: torch.Tensor) -> str:
    return digest([(other, value if other == name else weight) for other, weight in WEIGHTS])


def test_equal_weights_have_equal_digests_in_any_order_and_layout() -> None:
    transposed = torch.arange(6.0).view(2, 3).t().contiguous().t()
    assert not transposed.is_contiguous()
    assert digest(WEIGHTS) == digest(reversed(WEIGHTS)) == changed("a", transposed)
    assert len(digest(WEIGHTS)) == 32


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6.0).view(3, 2),
        torch.arange(6.0).view(2, 3).double(),
        torch.tensor([[1.0, 0, 2], [3, 4, 5]]),
        torch.tensor([[-0.0, 1, 2], [3, 4, 5]]),
        torch.tensor([[0.0, 1, 2], [3, 4, 5.000001]]),
    ],
    ids=["shape", "dtype", "order", "sign of zero", "last bits"],
)
def test_any_difference_shows(value: torch.Tensor) -> None:
    assert changed("a", value) != digest(WEIGHTS)


def test_names_count() -> None:
    (name, first), *rest = WEIGHTS
    assert digest([(name + "x", first), *rest]) != digest(WEIGHTS)
    assert digest(WEIGHTS[:-1]) != digest(WEIGHTS)


def test_pieces_and_whole_sum_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [("w", torch.randn(1000))]
    whole = digest(weights)
    monkeypatch.setattr(module, "CHUNK", 7)
    assert digest(weights) == whole


def test_nan_has_a_digest() -> None:
    nan = changed("a", torch.full((2, 3), torch.nan))
    assert nan == changed("a", torch.full((2, 3), torch.nan)) != digest(WEIGHTS)
