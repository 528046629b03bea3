"""Estimators of KL(policy || reference) from the log-prob of the sampled token, http://joschu.net/blog/kl-approx.html.

With ``d = log_prob - ref_log_prob``:

=====================  ===================================  ==========================================
name                   value                                gradient with respect to ``log_prob``
=====================  ===================================  ==========================================
``kl``, ``k1``         d                                    1
``abs``                abs(d)                               sign(d)
``mse``, ``k2``        d^2 / 2                              d
``low_var_kl``, ``k3``  min(exp(-d) + d - 1, 10)            1 - exp(-d)
any of them and ``+``  as the name without ``+``            d, the gradient of ``k2`` (straight-through)
=====================  ===================================  ==========================================

The bound of 10 keeps a report readable and a reward finite. It does **not** cut the gradient: a policy that has drifted
far from the reference is still pulled back, where a plain clamp would let go of it just there. In the value and in the
gradient of ``k3`` d is bounded to +-20, so that both stay finite in float32.
"""

from collections.abc import Callable

import torch
from torch import Tensor

LOG_RATIO_BOUND = 20.0
K3_BOUND = 10.0


def _k1(d: Tensor) -> Tensor:
    return d


def _abs(d: Tensor) -> Tensor:
    return d.abs()


def _k2(d: Tensor) -> Tensor:
    return 0.5 * d * d


def _k3(d: Tensor) -> Tensor:
    bounded = straight_through(d.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND), d)
    unclamped = torch.exp(-bounded) + bounded - 1.0
    return straight_through(unclamped.clamp(max=K3_BOUND), unclamped)


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "kl": _k1,
    "k1": _k1,
    "abs": _abs,
    "mse": _k2,
    "k2": _k2,
    "low_var_kl": _k3,
    "k3": _k3,
}
"""Value by name, as a function of ``log_prob - ref_log_prob``."""

KL_TYPES: tuple[str, ...] = (*ESTIMATORS, *(f"{name}+" for name in ESTIMATORS))
"""Every name that ``kl_penalty`` knows."""


def straight_through(value: Tensor, gradient_of: Tensor) -> Tensor:
    """A tensor that reads as ``value`` and differentiates as ``gradient_of``; both of one shape, finite."""
    return value.detach() + (gradient_of - gradient_of.detach())


def kl_penalty(log_probs: Tensor, ref_log_prob: Tensor, kl_type: str) -> Tensor:
    """The KL estimate of each token.

    ``log_probs``, ``ref_log_prob``: any one shape, cleaned of what lies under a mask (see ``masked``). Returns that
    shape. Raises ValueError for an unknown name.

    >>> kl_penalty(torch.tensor([-1.0]), torch.tensor([-1.5]), "k3")
    tensor([0.1065])
    """
    name = kl_type.removesuffix("+")
    if name not in ESTIMATORS or kl_type.count("+") > 1:
        raise ValueError(f"unknown KL type {kl_type!r}; known: {', '.join(KL_TYPES)}")
    d = log_probs - ref_log_prob
    value = ESTIMATORS[name](d)
    return straight_through(value, _k2(d)) if kl_type.endswith("+") else value
