"""Weight sync inside a rank: gather the shards flat, copy them into the co-located engine.

Gathering parameter by parameter costs a collective each, ten times the cost of one for all of them. So the local shards of
all parameters of one dtype go into one buffer, each padded to the length that the first rank's shard has, and one
all-gather brings the buffers of all ranks together.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from asyncrl.errors import WeightSyncError
from asyncrl.weight_sync.digest import digest
from asyncrl.weight_sync.protocol import WeightReceiver


@torch.no_grad()
def gather_flat(parameters: Sequence[tuple[str, Tensor]], *, dtype: torch.dtype | None = None) -> list[tuple[str, Tensor]]:
    """The whole tensors of sharded parameters, in their order. Collective over the ranks that share a copy.

    parameters: DTensors cut along their first dimension over one dimension of the mesh (as FSDP2 cuts them), and
    plain tensors, which are whole already. dtype: cast the shards before they travel; None keeps each as it is.
    The results may share memory with one another or with plain inputs: copy from them, do not write.
    Raises WeightSyncError for a tensor that is cut another way.
    """
    whole: dict[str, Tensor] = {}
    sharded: dict[tuple[torch.dtype, dist.ProcessGroup], list[tuple[str, DTensor]]] = {}
    for name, tensor in parameters:
        kind = tensor.dtype if dtype is None else dtype
        if not isinstance(tensor, DTensor):
            whole[name] = tensor.detach().to(kind)
            continue
        group = _shard_group(name, tensor)
        if group is None:
            whole[name] = tensor.to_local().detach().to(kind)
        else:
            sharded.setdefault((kind, group), []).append((name, tensor))
    for (kind, group), members in sharded.items():
        whole |= _gather(members, kind, group)
    return [(name, whole[name]) for name, _ in parameters]


def _shard_group(name: str, tensor: DTensor) -> dist.ProcessGroup | None:
    """The ranks over which the first dimension of ``tensor`` is cut; None when every rank holds all of it."""
    cut = [axis for axis, placement in enumerate(tensor.placements) if not isinstance(placement, Replicate)]
    if not cut:
        return None
    placement = tensor.placements[cut[0]]
    if len(cut) > 1 or not isinstance(placement, Shard) or placement.dim != 0 or tensor.ndim == 0:
        raise WeightSyncError(f"{name} is placed as {tensor.placements}; only a cut along the first dimension can be gathered flat")
    return tensor.device_mesh.get_group(cut[0])


def _gather(members: list[tuple[str, DTensor]], dtype: torch.dtype, group: dist.ProcessGroup) -> dict[str, Tensor]:
    """Gather the shards of ``members`` over ``group`` with one collective."""
    ranks = group.size()
    # torch.chunk's rule: every rank but the last ones holds ceil(rows / ranks) rows.
    rows = [-(-tensor.shape[0] // ranks) for _, tensor in members]
    widths = [tensor.shape[1:].numel() for _, tensor in members]
    sizes = [row * width for row, width in zip(rows, widths, strict=True)]
    flat = torch.empty(sum(sizes), dtype=dtype, device=members[0][1].to_local().device)
    for piece, (_, tensor) in zip(torch.split(flat, sizes), members, strict=True):
        local = tensor.to_local()
        piece[: local.numel()].view(local.shape).copy_(local)
    gathered = flat.new_empty(ranks * len(flat))
    dist.all_gather_single(gathered, flat, group=group)
    pieces = torch.split(gathered.view(ranks, -1), sizes, dim=1)
    return {name: piece.reshape(-1)[: tensor.numel()].view(tensor.shape) for piece, (name, tensor) in zip(pieces, members, strict=True)}


class InPlaceSync:
    """WeightSync into an engine of the same rank; each rank fills its own."""

    def __init__(self, receiver: WeightReceiver, *, dtype: torch.dtype | None = None) -> None:
        """``dtype``: that of the receiver's weights, None when it is the sender's."""
        self._receiver, self._dtype = receiver, dtype

    def publish(self, version: int, parameters: Sequence[tuple[str, Tensor]]) -> str:
        weights = gather_flat(parameters, dtype=self._dtype)
        sent = digest(weights)
        held = self._receiver.load(version, weights)
        if held != sent:
            raise WeightSyncError(f"version {version} was sent as {sent} and is held as {held}")
        return sent
