"""The training engine over FSDP2: weights, gradients and optimizer state are sharded over the data-parallel ranks.

``N`` rows of this rank, ``n`` of a micro-batch, ``R`` their longest response, ``T`` their response tokens, ``V`` the
vocabulary. Every rank runs the same number of micro-batches: one with fewer fills up with idle ones.
"""

import math
from collections.abc import Mapping, Sequence
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
from asyncrl.algorithms.logprobs import entropy_from_logits, log_probs_from_logits
from asyncrl.metrics import Last, Metrics, Sum, merge
from asyncrl.tensors.batch import Batch
from asyncrl.tensors.jagged import Jagged
from asyncrl.training.engine import Objective, Progress
from asyncrl.training.microbatch import MicroBatching, ModelInput, idle_input, model_input
from asyncrl.training.model import ModelConfig, make_mesh, read_model, shard_model
from asyncrl.training.optimizer import OptimizerConfig, Schedule, make_optimizer

STEPS = "training/optimizer_steps"
SKIPPED_EMPTY = "training/skipped_steps/no_trainable_token"
SKIPPED_NON_FINITE = "training/skipped_steps/non_finite_gradient"


@dataclass(frozen=True, slots=True)
class _Work:
    """The micro-batches of this rank, and what all ranks agreed on."""

    cuts: list[list[int]]
    count: int
    """Micro-batches of the rank that has most."""
    tokens: int
    sequences: int


class FSDPEngine:
    """A TrainEngine. The process group must be up; construct it and call it on the device thread."""

    def __init__(self, config: ModelConfig, optimizer: OptimizerConfig | None = None, mesh: DeviceMesh | None = None) -> None:
        """Read and shard the model. Collective. ``optimizer`` goes with a trainable model, and only with one."""
        if (optimizer is not None) != config.trainable:
            raise ValueError("a trainable model needs an optimizer, a frozen one has none")
        self.config, self.optimizer_config = config, optimizer
        self.mesh = make_mesh(config, dist.get_world_size()) if mesh is None else mesh
        self.group = self.mesh.get_group()
        self.dp_size, self.dp_rank = self.mesh.size(), self.mesh.get_local_rank()
        self.device = torch.device(config.device)
        self.model = shard_model(read_model(config), config, self.mesh).eval()
        self._optimizer = self._schedule = None
        if optimizer is not None:
            self._optimizer = make_optimizer(self.model.parameters(), optimizer)
            self._schedule = Schedule(self._optimizer, optimizer)
        self._predicting: Tensor | None = None
        head = cast(nn.Module, self.model.get_output_embeddings())  # type: ignore[operator]
        head.register_forward_pre_hook(self._keep_predicting)

    @property
    def lr(self) -> float:
        return 0.0 if self._schedule is None else self._schedule.lr

    def scheduler_step(self) -> None:
        if self._schedule is not None:
            self._schedule.move(self._schedule.done + 1)

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        return list(self.model.named_parameters())

    @torch.no_grad()
    def evaluate(
        self, rows: Batch, *, temperature: float, micro: MicroBatching, entropy: bool = False, progress: Progress | None = None
    ) -> dict[str, Jagged]:
        responses = rows.jagged("responses")
        work = self._agree(rows, micro, None)
        self.model.eval()
        names = ("log_probs", "entropy") if entropy else ("log_probs",)
        results: dict[str, list[Tensor]] = {name: [torch.empty(0)] * len(rows) for name in names}
        for at in range(work.count):
            cut = work.cuts[at] if at < len(work.cuts) else []
            part = rows.take(cut)
            laid = self._laid_out(part, micro)
            logits = self._logits(laid)
            if cut:
                values = {"log_probs": log_probs_from_logits(logits, laid.targets, temperature)}
                if entropy:
                    values["entropy"] = entropy_from_logits(logits, temperature)
                lengths = part.jagged("responses").lengths.tolist()
                for name, value in values.items():
                    for row, piece in zip(cut, torch.split(value.float().cpu(), lengths), strict=True):
                        results[name][row] = piece
            if progress is not None:
                progress()
        self._reshard()
        return {name: responses.with_values(torch.cat(pieces) if pieces else torch.empty(0)) for name, pieces in results.items()}

    def train_mini_batch(
        self,
        rows: Batch,
        objective: Objective,
        *,
        temperature: float,
        micro: MicroBatching,
        columns: Sequence[str],
        scale: float,
        entropy: bool = False,
        progress: Progress | None = None,
    ) -> Metrics:
        if self._optimizer is None:
            raise ValueError("this engine's model is frozen")
        work = self._agree(rows, micro, rows.jagged("response_mask"))
        if work.tokens == 0:
            return self._counted(SKIPPED_EMPTY)
        denominators = Denominators(tokens=float(work.tokens), sequences=float(work.sequences), scale=scale)
        names = dict.fromkeys((*columns, "response_mask"))
        self.model.train()
        self._optimizer.zero_grad()
        parts: list[Metrics] = []
        for at in range(work.count):
            part = rows.take(work.cuts[at] if at < len(work.cuts) else [])
            laid = self._laid_out(part, micro)
            logits = self._logits(laid)
            log_probs = log_probs_from_logits(logits, laid.targets, temperature)
            if len(part):
                spread = laid.padded(entropy_from_logits(logits, temperature)) if entropy else None
                loss, metrics = objective(laid.padded(log_probs), spread, self._fields(part, names, laid), denominators)
                parts.append(metrics)
            else:
                loss = log_probs.sum() * 0.0
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
        metrics: Metrics = {"actor/lr": Last(self.lr)}
        if math.isfinite(size):
            self._optimizer.step()
            metrics |= {"actor/grad_norm": Last(size)} | self._counted(STEPS)
        else:
            metrics |= self._counted(SKIPPED_NON_FINITE)
        self._optimizer.zero_grad()
        return metrics

    def _counted(self, what: str) -> Metrics:
        """One of ``what``; the first rank alone counts, so that the ranks' metrics add up to it."""
        return {name: Sum(float(name == what and self.dp_rank == 0)) for name in (STEPS, SKIPPED_EMPTY, SKIPPED_NON_FINITE)}

    def _agree(self, rows: Batch, micro: MicroBatching, mask: Jagged | None) -> _Work:
        """Cut the rows; learn the largest count, and the trainable tokens and rows of all ranks. Collective."""
        lengths = rows.jagged("prompts").lengths + rows.jagged("responses").lengths
        cuts = micro.cut(lengths.tolist())
        trainable = torch.zeros(0, 0) if mask is None else mask.padded() != 0
        mine = torch.tensor([len(cuts), int(trainable.sum()), int(trainable.any(-1).sum())], device=self.device)
        everyone = mine.new_empty(self.dp_size * len(mine))
        dist.all_gather_single(everyone, mine, group=self.group)
        counts, tokens, sequences = everyone.view(self.dp_size, -1).unbind(-1)
        return _Work(cuts, int(counts.max()), int(tokens.sum()), int(sequences.sum()))

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

    def _logits(self, laid: ModelInput) -> Tensor:
        """Logits [T, V] that predict the response tokens."""
        self._predicting = laid.predicting
        output = self.model(input_ids=laid.input_ids, position_ids=laid.position_ids, use_cache=False)
        self._predicting = None
        return cast(Tensor, output.logits[0])

    def _keep_predicting(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Let the head see only the hidden states that predict a response token: [1, T, width].

        Prompts and padding would make logits that nobody reads, [n, S, V]. Whatever the model does to its logits
        after the head still happens.
        """
        if self._predicting is None:
            return None
        hidden, *rest = inputs
        return (hidden.flatten(0, -2).index_select(0, self._predicting)[None], *rest)

    def _reshard(self) -> None:
        # Without a backward the gathered weights of the root would stay, and a later change of the shards go unseen.
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

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
