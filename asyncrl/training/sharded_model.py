"""A model that is cut over the data-parallel ranks by FSDP2, with its optimizer: what every training engine is made of.

``N`` rows of this rank, ``n`` of a micro-batch, ``R`` their longest response, ``T`` their response tokens. Every rank runs the
same number of micro-batches: one with fewer fills up with idle ones.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from asyncrl.algorithms.aggregation import Denominators
from asyncrl.algorithms.ranks import AllGather
from asyncrl.metrics import Last, Metrics, Sum, merge
from asyncrl.tensors.batch import Batch
from asyncrl.tensors.jagged import Jagged
from asyncrl.training.engine import Progress
from asyncrl.training.gather import GroupGather
from asyncrl.training.microbatch import MicroBatching, ModelInput, idle_input, model_input
from asyncrl.training.model import ModelConfig, make_mesh, shard_model
from asyncrl.training.optimizer import OptimizerConfig, Schedule, make_optimizer

Read = Callable[[Tensor, ModelInput], Mapping[str, Tensor]]
"""What the head gave, [T, width], as named values of the response tokens, [T] each."""
Loss = Callable[[Tensor, ModelInput, Mapping[str, Tensor], Denominators], tuple[Tensor, Metrics]]
"""The same, the columns of the rows as [n, R], and what the mini-batch is divided by -> this micro-batch's share, a scalar."""


@dataclass(frozen=True, slots=True)
class StepNames:
    """The metrics of an optimizer step."""

    lr: str
    grad_norm: str
    steps: str
    skipped_empty: str
    skipped_non_finite: str

    @classmethod
    def of(cls, role: str, steps: str) -> "StepNames":
        """``role`` begins learning rate and gradient norm, ``steps`` the counters."""
        skipped = f"{steps}/skipped_steps"
        return cls(
            f"{role}/lr", f"{role}/grad_norm", f"{steps}/optimizer_steps", f"{skipped}/no_trainable_token", f"{skipped}/non_finite_gradient"
        )


@dataclass(frozen=True, slots=True)
class _Work:
    """The micro-batches of this rank, and what all ranks agreed on."""

    cuts: list[list[int]]
    count: int
    """Micro-batches of the rank that has most."""
    tokens: int
    sequences: int
    trainable: int
    """Tokens that have a loss; ``tokens`` and ``sequences`` are what it is divided by, which may be more."""


class ShardedModel:
    """Cuts rows into micro-batches, runs them, accumulates gradients, steps. Construct and call it on the device thread.

    The process group must be up. ``head`` is the last layer: it sees only the hidden states that predict a response token.
    """

    def __init__(
        self,
        model: nn.Module,
        head: nn.Module,
        config: ModelConfig,
        optimizer: OptimizerConfig | None,
        mesh: DeviceMesh | None,
        names: StepNames,
        *,
        head_in_full_precision: bool = False,
    ) -> None:
        """Shard ``model``, of which ``head`` is a part. Collective. ``optimizer`` is None for a frozen model."""
        self.config, self.optimizer_config, self.names = config, optimizer, names
        self.mesh = make_mesh(config, dist.get_world_size()) if mesh is None else mesh
        self.group = self.mesh.get_group()
        self.dp_size, self.dp_rank = self.mesh.size(), self.mesh.get_local_rank()
        self.device = torch.device(config.device)
        self.model = shard_model(model, config, self.mesh, full_precision=head if head_in_full_precision else None).eval()
        self._optimizer = self._schedule = None
        if optimizer is not None:
            self._optimizer = make_optimizer(self.model.parameters(), optimizer)
            self._schedule = Schedule(self._optimizer, optimizer)
        self._predicting: Tensor | None = None
        self._widen = head_in_full_precision
        head.register_forward_pre_hook(self._keep_predicting)
        if head_in_full_precision:
            # A head that is gathered by itself must not return a view: FSDP2 hangs its backward hook on what it returns.
            head.register_forward_hook(_copied, prepend=True)

    @property
    def lr(self) -> float:
        return 0.0 if self._schedule is None else self._schedule.lr

    @property
    def gather(self) -> AllGather:
        return GroupGather(self.group, self.device)

    def scheduler_step(self) -> None:
        if self._schedule is not None:
            self._schedule.move(self._schedule.done + 1)

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        return list(self.model.named_parameters())

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"model": get_model_state_dict(self.model)}
        if self._optimizer is not None and self._schedule is not None:
            state["optimizer"] = get_optimizer_state_dict(self.model, self._optimizer)
            state["schedule"] = self._schedule.done
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        optimizers = [] if self._optimizer is None else [self._optimizer]
        set_state_dict(self.model, optimizers, model_state_dict=state["model"], optim_state_dict=state.get("optimizer", {}))
        if self._schedule is not None:
            self._schedule.move(int(state["schedule"]))

    @torch.no_grad()
    def _evaluate(
        self, rows: Batch, names: Sequence[str], read: Read, micro: MicroBatching, progress: Progress | None
    ) -> dict[str, Jagged]:
        """What ``read`` makes of every row, under the ``names`` it gives: float32, row by row. Collective."""
        responses = rows.jagged("responses")
        work = self._agree(rows, micro)
        self.model.eval()
        results: dict[str, list[Tensor]] = {name: [torch.empty(0)] * len(rows) for name in names}
        for at in range(work.count):
            cut = work.cuts[at] if at < len(work.cuts) else []
            part = rows.take(cut)
            laid = self._laid_out(part, micro)
            output = self._run(laid)
            if cut:
                values = read(output, laid)
                lengths = part.jagged("responses").lengths.tolist()
                for name in names:
                    for row, piece in zip(cut, torch.split(values[name].float().cpu(), lengths), strict=True):
                        results[name][row] = piece
            if progress is not None:
                progress()
        self._reshard()
        return {name: responses.with_values(torch.cat(pieces) if pieces else torch.empty(0)) for name, pieces in results.items()}

    def _train(
        self,
        rows: Batch,
        columns: Sequence[str],
        loss_of: Loss,
        micro: MicroBatching,
        scale: float,
        denominator: str,
        progress: Progress | None,
    ) -> Metrics:
        """One optimizer step over the rows of all ranks. Collective."""
        if self._optimizer is None:
            raise ValueError("this engine's model is frozen")
        work = self._agree(rows, micro, rows.jagged("response_mask"), rows.jagged(denominator))
        if work.trainable == 0:
            return self._counted(self.names.skipped_empty)
        denominators = Denominators(tokens=float(work.tokens), sequences=float(work.sequences), scale=scale)
        names = dict.fromkeys((*columns, "response_mask"))
        self.model.train()
        self._optimizer.zero_grad()
        parts: list[Metrics] = []
        for at in range(work.count):
            part = rows.take(work.cuts[at] if at < len(work.cuts) else [])
            laid = self._laid_out(part, micro)
            output = self._run(laid)
            if len(part):
                loss, metrics = loss_of(output, laid, self._fields(part, names, laid), denominators)
                parts.append(metrics)
            else:
                loss = output.float().sum() * 0.0
            # FSDP averages gradients over ranks; the loss is a share of a sum over ranks.
            (loss * self.dp_size).backward()  # type: ignore[no-untyped-call]
            if progress is not None:
                progress()
        return merge(parts) | self._optimizer_step()

    def _optimizer_step(self) -> Metrics:
        """Clip and apply the gradient, unless it is not finite: its norm is one number on all ranks, so they agree."""
        assert self._optimizer is not None
        assert self.optimizer_config is not None
        limit = self.optimizer_config.clip_grad
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), math.inf if limit is None else limit)
        size = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        metrics: Metrics = {self.names.lr: Last(self.lr)}
        if math.isfinite(size):
            self._optimizer.step()
            metrics |= {self.names.grad_norm: Last(size)} | self._counted(self.names.steps)
        else:
            metrics |= self._counted(self.names.skipped_non_finite)
        self._optimizer.zero_grad()
        return metrics

    def _counted(self, what: str) -> Metrics:
        """One of ``what``; the first rank alone counts, so that the ranks' metrics add up to it."""
        counters = (self.names.steps, self.names.skipped_empty, self.names.skipped_non_finite)
        return {name: Sum(float(name == what and self.dp_rank == 0)) for name in counters}

    def _agree(self, rows: Batch, micro: MicroBatching, trained: Jagged | None = None, counted: Jagged | None = None) -> _Work:
        """Cut the rows; learn the largest count, and of all ranks trained tokens, counted tokens and counted rows. Collective."""
        lengths = rows.jagged("prompts").lengths + rows.jagged("responses").lengths
        cuts = micro.cut(lengths.tolist())
        trainable, divided = (torch.zeros(0, 0) if mask is None else mask.padded() != 0 for mask in (trained, counted))
        mine = torch.tensor([len(cuts), int(divided.sum()), int(divided.any(-1).sum()), int(trainable.sum())], device=self.device)
        everyone = mine.new_empty(self.dp_size * len(mine))
        dist.all_gather_single(everyone, mine, group=self.group)
        counts, tokens, sequences, trainable = everyone.view(self.dp_size, -1).unbind(-1)
        return _Work(cuts, int(counts.max()), int(tokens.sum()), int(sequences.sum()), int(trainable.sum()))

    def _laid_out(self, part: Batch, micro: MicroBatching) -> ModelInput:
        if not len(part):
            return idle_input(self.device)
        prompts, responses = (self._here(part.jagged(name)) for name in ("prompts", "responses"))
        return model_input(prompts, responses, packed=micro.packed)

    def _here(self, rows: Jagged) -> Jagged:
        return Jagged(rows.values.to(self.device), rows.offsets.to(self.device))

    def _fields(self, part: Batch, names: Mapping[str, None], laid: ModelInput) -> dict[str, Tensor]:
        """The named columns as [n, R]; one value a row is spread over its tokens."""
        fields: dict[str, Tensor] = {}
        for name in names:
            column = part[name]
            if isinstance(column, Jagged):
                fields[name] = self._here(column).padded(0, laid.shape[1])
            else:
                fields[name] = part.dense(name).to(self.device)[:, None].expand(laid.shape)
        return fields

    def _run(self, laid: ModelInput) -> Tensor:
        """What the head gives where a response token is predicted: [T, width]."""
        self._predicting = laid.predicting
        output = self.model(input_ids=laid.input_ids, position_ids=laid.position_ids, use_cache=False)
        self._predicting = None
        return cast(Tensor, output.logits[0])

    def _keep_predicting(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Let the head see only the hidden states that predict a response token: [1, T, hidden].

        Prompts and padding would make outputs that nobody reads, for a language model [n, S, V]. Whatever the model does to
        them after the head still happens.
        """
        if self._predicting is None:
            return None
        hidden, *rest = inputs
        chosen = hidden.flatten(0, -2).index_select(0, self._predicting)[None]
        return (chosen.float() if self._widen else chosen, *rest)

    def _reshard(self) -> None:
        # Without a backward the gathered weights of the root would stay, and a later change of the shards go unseen.
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def _copied(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output.clone()
