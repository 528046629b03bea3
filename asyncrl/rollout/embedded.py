"""The embedded engine: continuous batching over the ``forward`` of a transformers model, in this process.

``B`` running requests always fill the slots 0 to B-1 of the cache. A step runs one forward of one token a row for those
that run, one prefill forward or a few for those that start, and draws a token for all of them together. The engine owns
its weights; it never shares a tensor with a trainer.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from asyncrl.errors import EngineUnavailable, RolloutError
from asyncrl.rollout.admission import Admission, Running
from asyncrl.rollout.cache import SlotCache
from asyncrl.rollout.model import check_length, eos_token_ids, read_model
from asyncrl.rollout.sampling import Sampler, uniform
from asyncrl.rollout.weights import copy_weights
from asyncrl.trajectory import GREEDY_SESSION, FirstToken, GenerateOutput, GenerateRequest, PolicyVersion, StopReason

Digest = Callable[[Iterable[tuple[str, Tensor]]], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddedOptions:
    """Limits of the engine."""

    max_num_seqs: int = 256
    """Most requests that run at once."""
    max_model_len: int
    """Most tokens of prompt and answer together."""
    max_num_batched_tokens: int = 8192
    """Most tokens, padding included, of one prefill forward; a single longer prompt goes alone."""
    full_determinism: bool = False
    """Admit in waves that depend on what was submitted together, not on order or timing."""


class EmbeddedEngine:
    """A RolloutEngine over a causal language model of transformers."""

    def __init__(self, model: nn.Module, options: EmbeddedOptions, *, digest: Digest, eos: Sequence[int] | None = None) -> None:
        """Take ``model`` over. ``digest`` names weights. ``eos``: the tokens that end an answer; None asks the model.

        Raises ConfigError when the model cannot attend over ``max_model_len`` tokens.
        """
        check_length(model, options.max_model_len)
        self.model = model.eval().requires_grad_(False)
        self.options = options
        self.eos_token_ids = frozenset(eos_token_ids(model) if eos is None else eos)
        weight = next(model.parameters())
        self._device, self._dtype = weight.device, weight.dtype
        self._vocabulary = int(cast(Any, model).get_input_embeddings().num_embeddings)
        self._digest = digest
        self._version: PolicyVersion = -1
        self._running: list[Running] = []
        self._in_flight: dict[str, Running] = {}
        self._started: list[FirstToken] = []
        self._admission = Admission(options.max_num_seqs, waves=options.full_determinism)
        self._cache = SlotCache(options.max_num_seqs, options.max_model_len)
        self._sampler: Sampler | None = None

    @classmethod
    def from_folder(
        cls,
        folder: str,
        options: EmbeddedOptions,
        *,
        digest: Digest,
        device: str = "cpu",
        dtype: str = "float32",
        trust_remote_code: bool = False,
    ) -> "EmbeddedEngine":
        """Read a model from a local Hugging Face folder. It generates only after a ``load``.

        Raises ConfigError when the folder holds no model, or code that nobody trusted.
        """
        return cls(read_model(folder, device=device, dtype=dtype, trust_remote_code=trust_remote_code), options, digest=digest)

    @property
    def version(self) -> PolicyVersion:
        return self._version

    @property
    def unfinished(self) -> int:
        return len(self._in_flight)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache; 0 while asleep."""
        return self._cache.nbytes

    def check(self, request: GenerateRequest) -> None:
        reason = self._refusal(request)
        if reason:
            raise RolloutError(f"request {request.request_id}: {reason}")

    def _refusal(self, request: GenerateRequest) -> str:
        prompt, sampling = request.prompt_ids, request.sampling
        if request.request_id in self._in_flight:
            return "a request of this id is in flight"
        if not prompt:
            return "the prompt is empty"
        if len(prompt) > self.options.max_model_len - 1:
            return f"the prompt has {len(prompt)} tokens; max_model_len {self.options.max_model_len} leaves room for one less"
        if min(prompt) < 0 or max(prompt) >= self._vocabulary:
            return f"the prompt holds token ids outside 0 to {self._vocabulary - 1}"
        if not (request.session.isdecimal() or request.session == GREEDY_SESSION):
            return f"session {request.session!r} is neither a number nor {GREEDY_SESSION!r}"
        if sampling.max_tokens < 1 or not sampling.temperature >= 0 or not 0 < sampling.top_p <= 1:
            return f"needs max_tokens >= 1, temperature >= 0 and 0 < top_p <= 1, got {sampling}"
        return ""

    def submit(self, requests: Sequence[GenerateRequest]) -> None:
        for request in requests:
            self.check(request)
        new = {request.request_id: Running(request, self._budget(request)) for request in requests}
        if len(new) < len(requests):
            raise RolloutError("two requests of one submit share a request id")
        self._in_flight.update(new)
        self._admission.add(new.values())

    def _budget(self, request: GenerateRequest) -> int:
        return min(request.sampling.max_tokens, self.options.max_model_len - len(request.prompt_ids))

    def _make_way(self) -> None:
        """Requests that are not urgent leave their slots for one that is; their tokens are prefilled again later."""
        slots = self._admission.in_the_way(self._running)
        rows = [self._running[slot] for slot in slots]
        self._free(slots)
        self._admission.put_back(rows)

    @torch.inference_mode()
    def step(self) -> list[GenerateOutput]:
        if self._version < 0:
            raise EngineUnavailable("the engine has no weights; load a version first")
        self._make_way()
        started = self._admission.take(self._running)
        if not self._running and not started:
            return []
        logits = self._forward(started)
        if started or self._sampler is None:
            self._sampler = Sampler([running.request.sampling for running in self._running], self._device)
        draws = [uniform(each.request, each.request.drawn + len(each.token_ids)) for each in self._running]
        return self._settle(*self._sampler.draw(logits, draws))

    def _forward(self, started: list[Running]) -> Tensor:
        """Logits [B, V] of the next token of every running request, the started ones last."""
        old = len(self._running)
        self._running += started
        self._cache.reserve(len(self._running), max(running.known for running in self._running))
        parts = [self._decode(self._running[:old])] if old else []
        first = old
        for chunk in self._chunks(started):
            parts.append(self._prefill(chunk, first))
            first += len(chunk)
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _decode(self, rows: list[Running]) -> Tensor:
        positions = torch.tensor([row.known - 1 for row in rows], device=self._device)
        tokens = torch.tensor([row.token_ids[-1] for row in rows], device=self._device)
        slots = torch.arange(len(rows), device=self._device) * self._cache.length
        reach = max(row.known for row in rows)
        self._cache.aim(0, len(rows), reach, slots + positions)
        return self._logits(tokens[:, None], positions[:, None], reach)

    def _chunks(self, rows: list[Running]) -> Iterable[list[Running]]:
        """Cut ``rows``, in order, so that each part fits into one prefill forward."""
        chunk: list[Running] = []
        longest = 0
        for row in rows:
            longest = max(longest, row.known)
            if chunk and (len(chunk) + 1) * longest > self.options.max_num_batched_tokens:
                yield chunk
                chunk, longest = [], row.known
            chunk.append(row)
        if chunk:
            yield chunk

    def _prefill(self, rows: list[Running], first: int) -> Tensor:
        # Padded on the left, so that the last column holds the last token of every row.
        longest = max(row.known for row in rows)
        padding = torch.tensor([longest - row.known for row in rows], device=self._device)
        ids = torch.tensor([[0] * (longest - row.known) + row.ids() for row in rows], device=self._device)
        positions = torch.arange(longest, device=self._device) - padding[:, None]
        slots = torch.arange(first, first + len(rows), device=self._device)[:, None] * self._cache.length
        index = torch.where(positions >= 0, slots + positions, self._cache.spare)
        self._cache.aim(first, first + len(rows), longest, index.flatten())
        return self._logits(ids, positions.clamp(min=0), longest)

    def _logits(self, ids: Tensor, positions: Tensor, reach: int) -> Tensor:
        """Logits [b, V] after the last of the tokens [b, q], which see the keys up to their own position."""
        hidden = torch.arange(reach, device=self._device) > positions[:, None, :, None]
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device).masked_fill(hidden, torch.finfo(self._dtype).min)
        output = self.model(
            input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=self._cache, use_cache=True, logits_to_keep=1
        )
        return cast(Tensor, output.logits[:, -1])

    def _settle(self, tokens: list[int], log_probs: list[float]) -> list[GenerateOutput]:
        """Append a token to each row; take out and return the rows that ended with it."""
        outputs: list[GenerateOutput] = []
        ended: list[int] = []
        for slot, (row, token, log_prob) in enumerate(zip(self._running, tokens, log_probs, strict=True)):
            first = row.append(token, log_prob, self._version)
            if first is not None:
                self._started.append(first)
            if token in self.eos_token_ids and not row.request.sampling.ignore_eos:
                outputs.append(row.output(StopReason.STOP))
            elif len(row.token_ids) >= row.budget:
                outputs.append(row.output(StopReason.LENGTH))
            else:
                continue
            ended.append(slot)
        self._free(ended)
        for output in outputs:
            del self._in_flight[output.request_id]
        return outputs

    def _free(self, slots: list[int]) -> None:
        """Empty ``slots``, ascending, by moving the last running requests into them."""
        if not slots:
            return
        kept = len(self._running) - len(slots)
        gone = frozenset(slots)
        targets = [slot for slot in slots if slot < kept]
        sources = [slot for slot in range(kept, len(self._running)) if slot not in gone]
        for source, target in zip(sources, targets, strict=True):
            self._running[target] = self._running[source]
        if sources:
            self._cache.move(sources, targets)
        del self._running[kept:]
        self._sampler = None

    def started(self) -> list[FirstToken]:
        started, self._started = self._started, []
        return started

    @torch.inference_mode()
    def abort(self, request_ids: Sequence[str] | None = None) -> list[GenerateOutput]:
        names = None if request_ids is None else frozenset(request_ids)
        slots = [slot for slot, row in enumerate(self._running) if names is None or row.request.request_id in names]
        rows = [self._running[slot] for slot in slots]
        self._free(slots)
        rows += self._admission.remove(names)
        for row in rows:
            del self._in_flight[row.request.request_id]
        return [row.output(StopReason.ABORT) for row in rows]

    def sleep(self) -> None:
        self._admission.put_back(self._running)
        self._running = []
        self._sampler = None
        self._cache.clear()

    def load(self, version: PolicyVersion, weights: Iterable[tuple[str, Tensor]]) -> str:
        self.sleep()
        self._version = -1
        copy_weights(self.model, weights)
        self._version = version
        return self._digest(self.model.named_parameters())
