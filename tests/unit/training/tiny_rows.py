"""A small model, a few uneven rows, and the same step in plain torch: no shards, no micro-batches, one row at a time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncrl.algorithms.aggregation import Denominators
from asyncrl.algorithms.losses import PolicyRows
from asyncrl.algorithms.losses.vanilla import VanillaOptions
from asyncrl.algorithms.objective import ObjectiveConfig, policy_objective
from asyncrl.metrics import Metrics
from asyncrl.tensors.batch import Batch
from asyncrl.tensors.jagged import Jagged

VOCABULARY = 17
TEMPERATURE = 0.8
SCALE = 8.0
COLUMNS = ("old_log_probs", "ref_log_prob", "advantages")


def write_model(folder: Path, seed: int = 0) -> nn.Module:
    """A model whose shapes do not divide by 2, saved to ``folder``."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=12,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=4,
        max_position_embeddings=64,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    model = cast(nn.Module, Qwen3ForCausalLM(config))  # type: ignore[no-untyped-call]
    cast(Any, model).save_pretrained(folder)
    return model


def uneven_rows(count: int = 7, seed: int = 3) -> Batch:
    """Rows of 1 to 6 prompt tokens and 0 to 7 response tokens, with zeros inside some masks."""
    draw = torch.Generator().manual_seed(seed)

    def length(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=draw))

    prompts = [torch.randint(VOCABULARY, (length(1, 6),), generator=draw) for _ in range(count)]
    responses = [torch.randint(VOCABULARY, (0 if row == 2 else length(1, 7),), generator=draw) for row in range(count)]
    fields: dict[str, list[Tensor]] = {
        "prompts": prompts,
        "responses": responses,
        "response_mask": [(torch.rand(len(row), generator=draw) > 0.25).long() for row in responses],
        "old_log_probs": [-2 - torch.rand(len(row), generator=draw) for row in responses],
        "ref_log_prob": [-2 - torch.rand(len(row), generator=draw) for row in responses],
        "values": [torch.rand(len(row), generator=draw) for row in responses],
        "returns": [torch.rand(len(row), generator=draw) - 0.5 for row in responses],
    }
    batch = Batch(tuple(f"k{row}" for row in range(count)), {name: Jagged.from_rows(rows) for name, rows in fields.items()})
    return batch.with_fields({"advantages": torch.randn(count, generator=draw)})


def padding_rows(count: int) -> Batch:
    """Rows of one prompt and one response token with mask 0, whose values must not matter."""
    one = [torch.ones(1)] * count
    whole = Jagged.from_rows([row.long() for row in one])
    nan = Jagged.from_rows([row * torch.nan for row in one])
    fields: dict[str, Any] = {
        "prompts": whole,
        "responses": whole,
        "old_log_probs": nan,
        "ref_log_prob": nan,
        "values": nan,
        "returns": nan,
        "advantages": torch.full((count,), torch.nan),
    }
    mask = Jagged.from_rows([row.long() * 0 for row in one])
    return Batch(tuple(f"pad{row}" for row in range(count)), {**fields, "response_mask": mask})


def joined(left: Batch, right: Batch) -> Batch:
    fields: dict[str, Any] = {}
    for name, value in left.fields.items():
        other = right[name]
        if isinstance(value, Jagged) and isinstance(other, Jagged):
            fields[name] = Jagged.concat([value, other])
        else:
            fields[name] = torch.cat([left.dense(name), right.dense(name)])
    return Batch(left.keys + right.keys, fields)


def objective(
    log_probs: Tensor, entropy: Tensor | None, fields: Mapping[str, Tensor], denominators: Denominators
) -> tuple[Tensor, Metrics]:
    config = ObjectiveConfig(
        options=VanillaOptions(0.2, 0.2, 3.0),
        loss_agg_mode="token-mean",
        entropy_coeff=0.05,
        use_kl_loss=True,
        kl_loss_coef=0.1,
        kl_loss_type="low_var_kl",
    )
    rows = PolicyRows(log_probs, fields["old_log_probs"], fields["advantages"], fields["response_mask"])
    return policy_objective(rows, entropy, fields["ref_log_prob"], config, denominators)


def plain_row(model: nn.Module, prompt: Tensor, response: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs and entropy of one row's response tokens, [r] each."""
    logits = model(input_ids=torch.cat([prompt, response])[None], use_cache=False).logits[0, len(prompt) - 1 : -1]
    spread = (logits / TEMPERATURE).log_softmax(-1)
    return spread.gather(-1, response[:, None])[:, 0], -(spread.exp() * spread).sum(-1)


def plain_rows(model: nn.Module, rows: Batch) -> tuple[list[Tensor], list[Tensor]]:
    pairs = [plain_row(model, *row) for row in zip(rows.jagged("prompts").to_rows(), rows.jagged("responses").to_rows(), strict=True)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def plain_squares(model: nn.Module, rows: Batch) -> list[Tensor]:
    """The sum over the vocabulary of the squared probability at each response token."""
    found = []
    for prompt, response in zip(rows.jagged("prompts").to_rows(), rows.jagged("responses").to_rows(), strict=True):
        logits = model(input_ids=torch.cat([prompt, response])[None], use_cache=False).logits[0, len(prompt) - 1 : -1]
        found.append((logits / TEMPERATURE).softmax(-1).square().sum(-1))
    return found


def plain_loss(model: nn.Module, rows: Batch) -> tuple[Tensor, Metrics]:
    """Loss and metrics of the rows as one mini-batch."""
    log_probs, entropy = (Jagged.from_rows(values).padded() for values in plain_rows(model, rows))
    mask = rows.jagged("response_mask").padded()
    fields = {name: rows.jagged(name).padded() for name in ("old_log_probs", "ref_log_prob")}
    fields |= {"response_mask": mask, "advantages": rows.dense("advantages")[:, None].expand(mask.shape)}
    return objective(log_probs, entropy, fields, Denominators.of(mask, SCALE))
