"""A GRPO step in plain torch: one process, padded, no FSDP, nothing of asyncrl. A second method to hold the trainer against.

A row is a dict: prompt_ids, response_ids, response_mask, score, uid, session, index and, if known, old_log_probs. Settings: clip_low,
clip_high, clip_c, kl_loss_coef, entropy_coeff, temperature, lr, optimizer ("AdamW" | "SGD"), weight_decay, betas, clip_grad, kl_in_reward
(beta, 0 = off), kl_penalty ("kl" | "low_var_kl"), mini_batches (row numbers of each optimizer step, epochs unrolled).
"""

import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

Row = dict[str, Any]


def response_tokens(model: Any, rows: Sequence[Row], temperature: float) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probs and entropies of the response tokens of each row, from one right-padded forward."""
    ids = [torch.tensor(row["prompt_ids"] + row["response_ids"]) for row in rows]
    tokens, attention = pad_sequence(ids, batch_first=True), pad_sequence([torch.ones_like(one) for one in ids], batch_first=True)
    logits = model(input_ids=tokens, attention_mask=attention).logits / temperature
    starts = [len(row["prompt_ids"]) - 1 for row in rows]
    parts = [out[at : len(one) - 1].log_softmax(-1) for out, at, one in zip(logits, starts, ids, strict=True)]
    chosen = [part[torch.arange(len(part)), one[len(one) - len(part) :]] for part, one in zip(parts, ids, strict=True)]
    return chosen, [-(part.exp() * part).sum(-1) for part in parts]


def k3(log_probs: Tensor, reference: Tensor) -> Tensor:
    return torch.expm1(reference - log_probs) - (reference - log_probs)


def grpo_advantages(rows: Sequence[Row], scores: Sequence[float]) -> list[float]:
    """The last output of each session votes; its advantage holds for the whole session."""
    ordered = sorted(range(len(rows)), key=lambda number: rows[number]["index"])
    last = {(rows[number]["uid"], rows[number]["session"]): scores[number] for number in ordered}
    votes = {uid: [score for (other, _), score in last.items() if other == uid] for uid, _ in last}
    spread = {uid: statistics.stdev(found) if len(found) > 1 else 0.0 for uid, found in votes.items()}
    gains = [(last[row["uid"], row["session"]] - statistics.fmean(votes[row["uid"]]), spread[row["uid"]]) for row in rows]
    return [gain / (deviation + 1e-6) if deviation else 0.0 for gain, deviation in gains]


def dense_step(model: Any, reference: Any, rows: Sequence[Row], settings: dict[str, Any], optimizer: Any = None) -> dict[str, Any]:
    """Train ``model`` in place. Returns old_log_probs, ref_log_probs, advantages (lists per row), updates (metrics), optimizer."""
    with torch.no_grad():
        computed = response_tokens(model, rows, settings["temperature"])[0]
        ref = response_tokens(reference, rows, settings["temperature"])[0]
    given = [row.get("old_log_probs") for row in rows]
    old = [now if known is None else torch.tensor(known) for known, now in zip(given, computed, strict=True)]
    masks = [torch.tensor(row["response_mask"], dtype=torch.bool) for row in rows]
    scores = [float(row["score"]) for row in rows]
    if beta := settings.get("kl_in_reward", 0.0):
        estimate = k3 if settings["kl_penalty"] == "low_var_kl" else torch.sub
        scores = [score - beta * estimate(o, r)[mask].sum().item() for score, o, r, mask in zip(scores, old, ref, masks, strict=True)]
    advantages = [[a * int(m) for m in row["response_mask"]] for a, row in zip(grpo_advantages(rows, scores), rows, strict=True)]
    if optimizer is None and settings["optimizer"] == "AdamW":
        optimizer = torch.optim.AdamW(model.parameters(), settings["lr"], settings["betas"], weight_decay=settings["weight_decay"])
    elif optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), settings["lr"], weight_decay=settings["weight_decay"])
    updates = []
    for batch in settings["mini_batches"]:
        new, entropies = response_tokens(model, [rows[i] for i in batch], settings["temperature"])
        # From here on flat lists of the trainable tokens, without padding or mask.
        lp, entropy = (torch.cat([part[n][masks[i]] for n, i in enumerate(batch)]) for part in (new, entropies))
        lp_old, lp_ref, a = (torch.cat([torch.as_tensor(part[i])[masks[i]] for i in batch]) for part in (old, ref, advantages))
        ratio, floor, roof = (lp - lp_old).exp(), 1 - settings["clip_low"], 1 + settings["clip_high"]
        bounded = torch.where(a < 0, ratio.clamp(floor, settings["clip_c"]), ratio.clamp(max=roof))
        parts = {"pg_loss": (-a * bounded).mean(), "entropy": entropy.mean(), "kl_loss": k3(lp, lp_ref).mean()}
        loss = parts["pg_loss"] - settings["entropy_coeff"] * parts["entropy"] + settings["kl_loss_coef"] * parts["kl_loss"]
        clipped = ((a > 0) & (ratio > roof)) | ((a < 0) & (ratio < floor))
        rates = {"pg_clipfrac": clipped.float().mean(), "ppo_kl": (lp_old - lp).mean()}
        rates["pg_clipfrac_lower"] = ((a < 0) & (ratio > settings["clip_c"])).float().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings["clip_grad"])
        optimizer.step()
        updates.append({name: value.item() for name, value in {**parts, **rates, "loss": loss, "grad_norm": norm}.items()})
    found = {"old_log_probs": [o.tolist() for o in old], "ref_log_probs": [r.tolist() for r in ref], "advantages": advantages}
    return {**found, "updates": updates, "optimizer": optimizer}
