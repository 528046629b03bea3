"""The supervised warm-up that makes the start weights: a few steps, so that the model knows the form and about a third of the sums.

Part of the build script: imports torch and transformers. With one thread the weights are byte-equal on one kind of CPU.
Legend: B sums of a batch, R longest answer in tokens, V vocabulary.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncrl.quickstart.sums import EOS_ID, PAD_ID, VOCABULARY, Pair, Sums, answer_ids
from asyncrl.quickstart.tasks import Task

BATCH = 256
CHECK_EVERY = 4
MOST_STEPS = 400
LEARNING_RATE = 1e-3
IGNORED = -100


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What a warm-up left: the model, the supervised steps it took, and its greedy accuracy on the judged sums."""

    model: Qwen3ForCausalLM
    steps: int
    accuracy: float


def warm_up(task: Task, seed: int) -> WarmUp:
    """Train a fresh model on the task's trained pairs until its greedy accuracy lies in the task's window; looked at every four steps.

    Raises RuntimeError when the accuracy never falls into that window: another seed is needed.
    """
    torch.manual_seed(seed)
    draw = random.Random(seed)
    model = fresh_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for step in range(1, MOST_STEPS + 1):
        loss = supervised_loss(model, task.sums, draw.choices(task.split.trained, k=BATCH))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % CHECK_EVERY:
            continue
        accuracy = greedy_accuracy(model, task.sums, task.judged)
        if task.lowest <= accuracy <= task.highest:
            return WarmUp(model, step, accuracy)
    window = f"[{task.lowest}, {task.highest}]"
    raise RuntimeError(f"seed {seed}: greedy accuracy was never in {window} within {MOST_STEPS} steps; take another seed")


def fresh_model() -> Qwen3ForCausalLM:
    """The quickstart's model with random weights: 395,776 parameters, float32, tied embeddings."""
    config = Qwen3Config(
        vocab_size=len(VOCABULARY),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]


def supervised_loss(model: Qwen3ForCausalLM, sums: Sums, pairs: Sequence[Pair]) -> torch.Tensor:
    """Mean cross-entropy over the answer tokens of ``pairs``, end-of-sequence included: a scalar."""
    answers = [answer_ids(pair) for pair in pairs]
    gaps = [sums.answer_length - len(answer) for answer in answers]
    prompts = torch.tensor([sums.prompt_ids(pair) for pair in pairs])
    inputs = torch.tensor([answer + [PAD_ID] * gap for answer, gap in zip(answers, gaps, strict=True)])
    targets = torch.tensor([answer + [IGNORED] * gap for answer, gap in zip(answers, gaps, strict=True)])
    logits_BRV = model(input_ids=torch.cat([prompts, inputs], dim=1)).logits[:, sums.prompt_length - 1 : -1]
    return functional.cross_entropy(logits_BRV.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


@torch.no_grad()
def greedy_accuracy(model: Qwen3ForCausalLM, sums: Sums, pairs: Sequence[Pair]) -> float:
    """The share of ``pairs`` whose greedy answer, end-of-sequence included, is right."""
    tokens = torch.tensor([sums.prompt_ids(pair) for pair in pairs])
    for _ in range(sums.answer_length):
        best = model(input_ids=tokens).logits[:, -1].argmax(dim=-1, keepdim=True)
        tokens = torch.cat([tokens, best], dim=1)
    answers: list[list[int]] = tokens[:, sums.prompt_length :].tolist()
    right = [answer[: len(answer_ids(pair))] == answer_ids(pair) for pair, answer in zip(pairs, answers, strict=True)]
    return sum(right) / len(right)
