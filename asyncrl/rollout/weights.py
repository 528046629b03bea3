"""Takes new weights over into a model, in place."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from asyncrl.errors import WeightSyncError


def check_weights(model: nn.Module, weights: Iterable[tuple[str, torch.dtype, Sequence[int]]]) -> None:
    """Raise WeightSyncError unless ``copy_weights`` would take tensors of these names, types and shapes.

    Nothing is touched: so an engine can refuse before anything travels.
    """
    missing = dict(model.named_parameters())
    owner = {id(parameter): name for name, parameter in missing.items()}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, dtype, shape in weights:
        parameter = parameters.get(name)
        if parameter is None:
            raise WeightSyncError(f"the engine's model has no parameter {name!r}")
        if (dtype, tuple(shape)) != (parameter.dtype, tuple(parameter.shape)):
            held = f"{parameter.dtype} of shape {tuple(parameter.shape)}"
            raise WeightSyncError(f"{name} is {dtype} of shape {tuple(shape)}; the engine's model has {held}")
        missing.pop(owner[id(parameter)], None)
    if missing:
        raise WeightSyncError(f"no weights would come for {', '.join(missing)}")


@torch.no_grad()
def copy_weights(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copy ``weights`` over the parameters of ``model``, whose dtype and device stay.

    A tied parameter may come under any of its names; under two of them only with equal values. Raises WeightSyncError
    for a name that the model lacks, another shape, or a parameter that did not come; part of the weights may then have
    been replaced.
    """
    missing = dict(model.named_parameters())
    owner = {id(parameter): name for name, parameter in missing.items()}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, weight in weights:
        parameter = parameters.get(name)
        if parameter is None:
            raise WeightSyncError(f"the engine's model has no parameter {name!r}")
        if weight.shape != parameter.shape:
            raise WeightSyncError(f"{name} has shape {tuple(weight.shape)}; the engine's model has {tuple(parameter.shape)}")
        if missing.pop(owner[id(parameter)], None) is not None:
            parameter.copy_(weight)
        elif not torch.equal(parameter, weight.to(parameter)):
            raise WeightSyncError(f"{name} came twice, or under two names of a tied parameter, with different values")
    if missing:
        raise WeightSyncError(f"no weights came for {', '.join(missing)}")
