"""A step in plain torch: one process, padded, no FSDP, nothing of asyncrl. A second method to hold the trainer against.

A row is a dict: prompt_ids, response_ids, response_mask, score, uid, session, index and, where known or looked at, old_log_probs,
rollout_log_probs, key, baseline, components. Settings: adv_estimator ("grpo" unless given) with what ``tests.dense_estimators`` takes,
what ``tests.dense_losses`` and ``tests.dense_correction`` take, clip_low, clip_high, clip_c, kl_loss_coef, entropy_coeff, temperature, lr,
optimizer ("AdamW" | "SGD"), weight_decay, betas, clip_grad, kl_in_reward (beta, 0 = off), kl_penalty (an estimator's name), bypass (the
engine's log-probs are the old ones), mini_batches (row numbers of each optimizer step, epochs unrolled; the pass of each in passes).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tests.dense_correction import corrected
from tests.dense_critic import DenseCritic, dense_critic_step, dense_values
from tests.dense_estimators import ESTIMATORS, as_lists, dense_returns, token_rewards
from tests.dense_losses import PLAIN as PLAIN_LOSS, Tokens, kl, objective

Row = dict[str, Any]
PLAIN: Row = {"adv_estimator": "grpo", "gamma": 1.0, "lam": 1.0, "norm_by_std": True, "components": {}, "bypass": False, **PLAIN_LOSS}


def distributions(model: Any, rows: Sequence[Row], temperature: float) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probs of the whole vocabulary at each response token of each row, from one right-padded forward; and the tokens."""
    ids = [torch.tensor(row["prompt_ids"] + row["response_ids"]) for row in rows]
    tokens, attention = pad_sequence(ids, batch_first=True), pad_sequence([torch.ones_like(one) for one in ids], batch_first=True)
    logits = model(input_ids=tokens, attention_mask=attention).logits / temperature
    starts = [len(row["prompt_ids"]) - 1 for row in rows]
    parts = [out[at : len(one) - 1].log_softmax(-1) for out, at, one in zip(logits, starts, ids, strict=True)]
    return parts, [one[len(one) - len(part) :] for part, one in zip(parts, ids, strict=True)]


def response_tokens(model: Any, rows: Sequence[Row], temperature: float) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probs and entropies of the response tokens of each row."""
    parts, tokens = distributions(model, rows, temperature)
    chosen = [part[torch.arange(len(part)), one] for part, one in zip(parts, tokens, strict=True)]
    return chosen, [-(part.exp() * part).sum(-1) for part in parts]


def squares(model: Any, rows: Sequence[Row], temperature: float) -> list[list[float]]:
    """The sum of the squared probabilities at each response token."""
    return [part.exp().square().sum(-1).tolist() for part in distributions(model, rows, temperature)[0]]


def correction(rows: Sequence[Row], old: list[Tensor], settings: Row) -> tuple[list[Row], Row]:
    """The rows with their masks after rejection and their importance weights, and metrics."""
    masks = [torch.tensor(row["response_mask"], dtype=torch.bool) for row in rows]
    sampled = [torch.tensor(row["rollout_log_probs"])[mask] for row, mask in zip(rows, masks, strict=True)]
    parts, kept, metrics = corrected([part[mask] for part, mask in zip(old, masks, strict=True)], sampled, settings)
    found = []
    for row, mask, part, one in zip(rows, masks, parts, kept, strict=True):
        weights, left = torch.zeros(len(mask)), torch.zeros(len(mask), dtype=torch.int64)
        weights[mask], left[mask] = part, one.long()
        found.append({**row, "weights": weights.tolist(), "response_mask": left.tolist()})
    return found, metrics


def estimates(
    model: Any, critic: DenseCritic | None, rows: Sequence[Row], kept: Sequence[Row], settings: Row, old: list[Tensor], ref: list[Tensor]
) -> Row:
    """Advantages and returns, and what they were made of, as lists per row; ``kept`` are the rows after rejection."""
    name, beta = settings.get("kl_penalty", "kl"), settings.get("kl_in_reward", 0.0)
    rewards = [token_rewards(row, (beta * kl(o, r, name)).tolist()) for row, o, r in zip(rows, old, ref, strict=True)]
    values = [[0.0] * len(o) for o in old] if critic is None else dense_values(critic, rows)
    with torch.no_grad():
        made = {"rewards": rewards, "values": values, "sum_pi_squared": squares(model, rows, settings["temperature"])}
    told = [{**row, **{name: part[n] for name, part in made.items()}, "old_log_probs": old[n].tolist()} for n, row in enumerate(kept)]
    name = settings["adv_estimator"]
    advantages = ESTIMATORS[name](told, settings)
    return made | {"advantages": as_lists(rows, advantages), "returns": as_lists(rows, dense_returns(name, told, settings, advantages))}


def dense_step(
    model: Any, reference: Any, rows: Sequence[Row], settings: dict[str, Any], optimizer: Any = None, critic: DenseCritic | None = None
) -> dict[str, Any]:
    """Train ``model`` and ``critic`` in place.

    Returns old_log_probs, ref_log_probs, the rows after rejection and what ``estimates`` gives (lists per row), updates, critic_updates
    and corrections (metrics), optimizer.
    """
    settings = PLAIN | settings
    with torch.no_grad():
        computed = response_tokens(model, rows, settings["temperature"])[0]
        ref = response_tokens(reference, rows, settings["temperature"])[0]
    given = [row.get("rollout_log_probs" if settings["bypass"] else "old_log_probs") for row in rows]
    old = [now if known is None else torch.tensor(known) for known, now in zip(given, computed, strict=True)]
    decoupled = not settings["bypass"] and any(settings.get(part) for part in ("rollout_is", "rollout_rs"))
    kept, corrections = (
        correction(rows, old, settings)
        if decoupled
        else ([{**row, "weights": [1.0] * len(o)} for row, o in zip(rows, old, strict=True)], {})
    )
    made = estimates(model, critic, rows, kept, settings, old, ref)
    learned = [] if critic is None else dense_critic_step(critic, kept, made["values"], made["returns"], settings)
    optimizer = optimizer or optimizer_of(model, settings)
    updates = []
    for number, batch in enumerate(settings["mini_batches"]):
        new, entropies = response_tokens(model, [rows[i] for i in batch], settings["temperature"])
        tokens = []
        for n, i in enumerate(batch):
            mask = torch.tensor(kept[i]["response_mask"], dtype=torch.bool)
            held = [torch.as_tensor(part)[mask] for part in (old[i], ref[i], entropies[n], made["advantages"][i], kept[i]["weights"])]
            tokens.append(Tokens(kept[i].get("key", ""), mask.nonzero().flatten().tolist(), new[n][mask], *held))
        counted = [sum(rows[i]["response_mask"]) for i in batch]
        terms = objective(tokens, counted, settings | {"pass": settings["passes"][number] if "passes" in settings else 0})
        optimizer.zero_grad()
        terms["loss"].backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings["clip_grad"])
        optimizer.step()
        updates.append({name: value.item() for name, value in {**terms, "grad_norm": norm}.items()})
    found = {"old_log_probs": [o.tolist() for o in old], "ref_log_probs": [r.tolist() for r in ref], "kept": kept, **made}
    return {**found, "updates": updates, "critic_updates": learned, "corrections": corrections, "optimizer": optimizer}


def optimizer_of(model: Any, settings: Row) -> Any:
    if settings["optimizer"] == "AdamW":
        return torch.optim.AdamW(model.parameters(), settings["lr"], settings["betas"], weight_decay=settings["weight_decay"])
    return torch.optim.SGD(model.parameters(), settings["lr"], weight_decay=settings["weight_decay"])
