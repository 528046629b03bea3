"""The objective, by hand, under cuts, and against the dense reference step on a tiny model."""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncrl.algorithms.advantages import AdvantageOptions, OutcomeRows, multi_output
from asyncrl.algorithms.advantages.grpo import GRPO
from asyncrl.algorithms.aggregation import AGGREGATIONS, Denominators
from asyncrl.algorithms.kl import KL_TYPES
from asyncrl.algorithms.kl_in_reward import row_kl
from asyncrl.algorithms.logprobs import entropy_from_logits, log_probs_from_logits
from asyncrl.algorithms.losses import POLICY_LOSSES, PolicyRows, loss_options
from asyncrl.algorithms.losses.vanilla import VanillaOptions
from asyncrl.algorithms.masked import over_tokens
from asyncrl.algorithms.objective import ObjectiveConfig, policy_objective
from asyncrl.metrics import Metrics, merge, scalars
from tests.dense_reference import dense_step

CONFIG = ObjectiveConfig(options=VanillaOptions(0.2, 0.28, 3.0), entropy_coeff=0.01, use_kl_loss=True, kl_loss_coef=0.1)


def changed(**fields: Any) -> ObjectiveConfig:
    return replace(CONFIG, **fields)


def batch(rows: int = 6, width: int = 5) -> list[Tensor]:
    """log_probs, entropy, old, advantages, mask, reference."""
    generator = torch.Generator().manual_seed(11)
    old = -torch.rand(rows, width, generator=generator, dtype=torch.float64)
    noise = torch.randn(4, rows, width, generator=generator, dtype=torch.float64)
    mask = torch.randint(0, 2, (rows, width), generator=generator)
    mask[2] = 0
    return [old + noise[0] * 0.5, noise[1].abs(), old, noise[2], mask, old + noise[3]]


def objective(fields: Sequence[Any], config: ObjectiveConfig, of: Denominators) -> tuple[Tensor, Metrics]:
    log_probs, entropy, old, advantages, mask, reference = fields
    return policy_objective(PolicyRows(log_probs, old, advantages, mask), entropy, reference, config, of)


def test_two_tokens_by_hand() -> None:
    log_probs, old = torch.tensor([[math.log(0.6), -1.0]]), torch.tensor([[math.log(0.5), -1.0]])
    advantages, entropy = torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5, 0.7]])
    mask = torch.ones(1, 2)
    config = changed(entropy_coeff=0.5, kl_loss_type="k2", options=VanillaOptions(0.1, 0.1, 3.0))
    loss, metrics = policy_objective(PolicyRows(log_probs, old, advantages, mask), entropy, old - 1.0, config, Denominators.of(mask, 2))
    kl = ((1 + math.log(1.2)) ** 2 / 2 + 0.5) / 2
    policy = (-1.1 + 2.0) / 2
    assert loss.item() == pytest.approx(policy - 0.5 * 0.6 + 0.1 * kl, rel=1e-5)
    assert scalars(metrics) == pytest.approx(
        {
            "actor/pg_loss": policy,
            "actor/kl_loss": kl,
            "actor/kl_coef": 0.1,
            "actor/entropy": 0.6,
            "actor/entropy_loss": 0.6,
            "actor/loss": loss.item(),
            "actor/pg_clipfrac": 0.5,
            "actor/pg_clipfrac_lower": 0.0,
            "actor/ppo_kl": -math.log(1.2) / 2,
        },
        rel=1e-5,
    )


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("kl_type", KL_TYPES)
def test_cut_padding_order_and_junk_change_no_loss_metric_or_gradient(mode: str, kl_type: str) -> None:
    config, fields = changed(loss_agg_mode=mode, kl_loss_type=kl_type), batch()
    mask = fields[4]
    whole = Denominators.of(mask, 9)

    def run(tensors: list[Tensor], cut: int) -> tuple[float, dict[str, float], Tensor, Tensor]:
        leaves = [tensors[0].clone().requires_grad_(), tensors[1].clone().requires_grad_()]
        total, parts = torch.zeros((), dtype=torch.float64), list[Metrics]()
        for at in range(0, len(mask), cut):
            loss, metrics = objective([t[at : at + cut] for t in (*leaves, *tensors[2:])], config, whole)
            total, parts = total + loss, [*parts, metrics]
        log_grad, entropy_grad = torch.autograd.grad(total, leaves)
        return total.item(), scalars(merge(parts)), log_grad, entropy_grad

    expected = run(fields, len(mask))
    order = torch.tensor([3, 5, 0, 2, 1, 4])
    for junk, cut in ((math.nan, 1), (math.inf, 2), (1e30, 4)):
        dirty = [t if t is mask else torch.where(mask.bool(), t, junk) for t in fields]
        wide = [torch.nn.functional.pad(t[order], (0, 2), value=0 if t is mask else junk) for t in dirty]
        wide[4] = torch.nn.functional.pad(mask[order], (0, 2))
        loss, metrics, log_grad, entropy_grad = run(wide, cut)
        assert loss == pytest.approx(expected[0], abs=1e-12)
        assert metrics == pytest.approx(expected[1], abs=1e-12)
        torch.testing.assert_close(log_grad[:, :-2], expected[2][order])
        torch.testing.assert_close(entropy_grad[:, :-2], expected[3][order])
        assert not bool(log_grad[:, -2:].any())


def test_a_batch_without_trainable_tokens_is_harmless() -> None:
    fields = [torch.full((2, 3), math.nan) for _ in range(6)]
    fields[4], fields[0] = torch.zeros(2, 3), fields[0].requires_grad_()
    loss, metrics = objective(fields, CONFIG, Denominators.of(fields[4], 3))
    (grad,) = torch.autograd.grad(loss, fields[0])
    assert loss.item() == 0.0
    assert grad.tolist() == [[0.0] * 3] * 2
    assert metrics["actor/pg_loss"].value() == 0.0


def test_entropy_without_a_coefficient_is_reported_and_gets_no_gradient() -> None:
    fields = batch()
    fields[0].requires_grad_()
    fields[1].requires_grad_()
    loss, metrics = objective(fields, changed(entropy_coeff=0.0), Denominators.of(fields[4], 5))
    assert torch.autograd.grad(loss, fields[:2], allow_unused=True)[1] is None
    assert metrics["actor/entropy"].value() == pytest.approx(fields[1][fields[4] == 1].mean().item())


def test_a_coefficient_changes_the_gradient() -> None:
    fields = batch()
    fields[0].requires_grad_()
    loss_a, _ = objective(fields, changed(kl_loss_coef=0.0), Denominators.of(fields[4], 5))
    loss_b, _ = objective(fields, CONFIG, Denominators.of(fields[4], 5))
    (a,), (b,) = torch.autograd.grad(loss_a, fields[0]), torch.autograd.grad(loss_b, fields[0])
    assert not torch.allclose(a, b)


def test_a_loss_keeps_its_own_aggregation_and_the_other_terms_take_the_configured_one() -> None:
    fields = batch()
    of = Denominators.of(fields[4], 9)
    sapo = {"policy_loss": POLICY_LOSSES["sapo"], "options": loss_options("sapo", {})}
    per_mode = [objective(fields, changed(**sapo, loss_agg_mode=mode), of)[1] for mode in ("seq-mean-token-mean", "token-sum")]
    assert per_mode[0]["actor/pg_loss"] == per_mode[1]["actor/pg_loss"]
    assert per_mode[0]["actor/kl_loss"] != per_mode[1]["actor/kl_loss"]


def test_terms_without_their_tensor_and_unknown_names_are_refused() -> None:
    fields: list[Any] = batch()
    of = Denominators.of(fields[4], 5)
    with pytest.raises(ValueError, match="no entropy"):
        objective([fields[0], None, *fields[2:]], CONFIG, of)
    with pytest.raises(ValueError, match="no ref_log_prob"):
        objective([*fields[:5], None], CONFIG, of)
    for name in ("loss_agg_mode", "kl_loss_type"):
        with pytest.raises(ValueError, match=f"unknown {name} 'x'"):
            changed(**{name: "x"})


# ------------------------------------------------------------------------ against the dense reference step

SETTINGS = {
    "clip_low": 0.2,
    "clip_high": 0.28,
    "clip_c": 3.0,
    "kl_loss_coef": 0.1,
    "entropy_coeff": 0.01,
    "temperature": 0.8,
    "lr": 0.05,
    "optimizer": "SGD",
    "weight_decay": 0.0,
    "betas": (0.9, 0.999),
    "clip_grad": 0.3,
    "kl_in_reward": 0.0,
    "kl_penalty": "kl",
    "mini_batches": [list(range(7))],
}


def tiny_model(seed: int) -> Any:
    torch.manual_seed(seed)
    build: Any = Qwen3ForCausalLM
    sizes: Any = Qwen3Config
    config = sizes(
        vocab_size=17,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    return build(config).float()


def rows() -> list[dict[str, Any]]:
    """uA and uB with three sessions each; uA_2 has two outputs; masks with inner zeros; old log-probs off the policy."""
    generator = torch.Generator().manual_seed(9)
    keys = [("uA", 0, 0), ("uA", 1, 0), ("uA", 2, 0), ("uA", 2, 1), ("uB", 0, 0), ("uB", 1, 0), ("uB", 2, 0)]
    scores = [1.0, 0.0, 9.0, 0.0, 0.0, 1.0, 1.0]
    found = []
    for number, ((uid, session, index), score) in enumerate(zip(keys, scores, strict=True)):
        ids = torch.randint(1, 17, (3 + number % 2 + 4 + number % 3,), generator=generator).tolist()
        prompt, response = ids[: 3 + number % 2], ids[3 + number % 2 :]
        mask = [1] * len(response)
        mask[1] = number % 2
        row = {"uid": uid, "session": session, "index": index, "prompt_ids": prompt, "response_ids": response}
        old = (-2.9 + 0.8 * torch.randn(len(response), generator=generator)).tolist()
        found.append(row | {"response_mask": mask, "score": score, "old_log_probs": old})
    return found


def padded(rows: list[list[float]]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def packed_outputs(model: Any, batch: list[dict[str, Any]], temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropy [N, R], each row by a forward of its own."""
    log_probs, entropies = [], []
    for row in batch:
        logits = model(input_ids=torch.tensor([row["prompt_ids"] + row["response_ids"]])).logits[0]
        part = logits[len(row["prompt_ids"]) - 1 : -1]
        log_probs.append(log_probs_from_logits(part, torch.tensor(row["response_ids"]), temperature))
        entropies.append(entropy_from_logits(part, temperature))
    return tuple(torch.nn.utils.rnn.pad_sequence(part, batch_first=True) for part in (log_probs, entropies))  # type: ignore[return-value]


@pytest.mark.parametrize("beta", [0.0, 0.2])
def test_one_update_equals_the_dense_reference_step(beta: float) -> None:
    dense, ours, reference = tiny_model(1), tiny_model(1), tiny_model(2)
    batch = rows()
    answer = dense_step(dense, reference, copy.deepcopy(batch), SETTINGS | {"kl_in_reward": beta})

    mask, old = padded([row["response_mask"] for row in batch]), padded([row["old_log_probs"] for row in batch])
    with torch.no_grad():
        ref = packed_outputs(reference, batch, 0.8)[0]
    scores = torch.tensor([row["score"] for row in batch]) - beta * row_kl(old, ref, mask, "kl")[0]
    groups = torch.tensor([["uA", "uB"].index(row["uid"]) for row in batch])
    sessions, indices = (torch.tensor([row[name] for row in batch]) for name in ("session", "index"))
    outcome = OutcomeRows(scores, groups, mask.sum(-1), sessions, indices)
    advantages = over_tokens(multi_output(GRPO)(outcome, AdvantageOptions()), mask)
    torch.testing.assert_close(advantages, padded(answer["advantages"]), rtol=1e-5, atol=1e-5)

    optimizer = torch.optim.SGD(ours.parameters(), lr=0.05)
    log_probs, entropy = packed_outputs(ours, batch, 0.8)
    loss, metrics = policy_objective(PolicyRows(log_probs, old, advantages, mask), entropy, ref, CONFIG, Denominators.of(mask, 8))
    loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(ours.parameters(), 0.3)
    optimizer.step()

    found = scalars(metrics) | {"actor/grad_norm": float(norm)}
    (update,) = answer["updates"]
    assert update["pg_clipfrac"] > 0
    assert update["pg_clipfrac_lower"] > 0
    assert {name: found[f"actor/{name}"] for name in update} == pytest.approx(update, rel=1e-5, abs=1e-6)
    for (name, left), right in zip(dense.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")  # type: ignore[misc]


def test_the_dense_reference_unrolls_epochs_and_computes_old_log_probs_itself() -> None:
    model, reference = tiny_model(1), tiny_model(1)
    batch = [row | {"old_log_probs": None} for row in rows()]
    two = [[0, 1, 2, 3], [4, 5, 6]]
    answer = dense_step(model, reference, batch, SETTINGS | {"optimizer": "AdamW", "lr": 1e-3, "mini_batches": two * 2})
    first, *later = answer["updates"]
    assert len(later) == 3
    assert first["ppo_kl"] == pytest.approx(0.0, abs=1e-6)
    assert first["kl_loss"] == pytest.approx(0.0, abs=1e-6)
    assert all(abs(update["ppo_kl"]) > 1e-6 for update in later)
    assert answer["old_log_probs"] == answer["ref_log_probs"]
