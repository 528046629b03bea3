"""A critic and its step in plain torch: one process, one row at a time, no FSDP, nothing of asyncrl."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModel

Row = dict[str, Any]


class DenseCritic(nn.Module):
    """A backbone and a linear head of one output."""

    def __init__(self, folder: Path, weights: Path) -> None:
        """The shape of the model in ``folder``, with the weights of an exported critic."""
        super().__init__()
        held = load_file(weights)
        self.model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32)
        self.score = nn.Linear(self.model.config.hidden_size, 1)
        self.load_state_dict(held)

    def forward(self, row: Row) -> Tensor:
        """The value of the state before each response token, [r]."""
        ids, start = torch.tensor([row["prompt_ids"] + row["response_ids"]]), len(row["prompt_ids"]) - 1
        hidden = self.model(input_ids=ids).last_hidden_state[0]
        values: Tensor = self.score(hidden)[start:-1, 0]
        return values


def dense_values(critic: DenseCritic, rows: Sequence[Row]) -> list[list[float]]:
    with torch.no_grad():
        return [critic(row).tolist() for row in rows]


def dense_critic_step(
    critic: DenseCritic, rows: Sequence[Row], values: list[list[float]], returns: list[list[float]], settings: Row
) -> list[Row]:
    """SGD on every mini-batch (``critic_mini_batches``, or those of the policy), in place.

    Gives loss, gradient norm, mean value and share of clipped errors of each.
    """
    optimizer = torch.optim.SGD(critic.parameters(), settings["critic_lr"])
    updates = []
    for batch in settings.get("critic_mini_batches") or settings["mini_batches"]:
        masks = [torch.tensor(rows[number]["response_mask"], dtype=torch.bool) for number in batch]
        now = torch.cat([critic(rows[number])[mask] for number, mask in zip(batch, masks, strict=True)])
        old, target = (
            torch.cat([torch.tensor(part[number])[mask] for number, mask in zip(batch, masks, strict=True)]) for part in (values, returns)
        )
        moved = old + (now - old).clamp(-settings["cliprange_value"], settings["cliprange_value"])
        plain, clipped = (now - target) ** 2, (moved - target) ** 2
        loss = 0.5 * torch.max(plain, clipped).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(critic.parameters(), settings["clip_grad"])
        optimizer.step()
        found = {"vf_loss": loss, "grad_norm": norm, "vpred_mean": now.mean(), "vf_clipfrac": (clipped > plain).float().mean()}
        updates.append({name: value.item() for name, value in found.items()})
    return updates
