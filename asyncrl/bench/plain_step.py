"""The reference of ``asyncrl bench step``: GRPO in one process, plain torch and transformers, and the files of the work.

python -m asyncrl.bench.plain_step make FOLDER          the model and the prompts
python -m asyncrl.bench.plain_step run FOLDER STEPS     prints {"seconds": [...]} as its last line
"""

import copy
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from asyncrl.quickstart.tokenizer import write_tokenizer

PROMPTS, SESSIONS, MOST_TOKENS = 32, 16, 8
CLIP, KL_WEIGHT, LEARNING_RATE = 0.2, 0.001, 5e-4


def make(folder: Path) -> None:
    """Write the model with random weights, its tokenizer, and the prompts."""
    (folder / "model").mkdir()
    write_tokenizer(folder / "model")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder / "model")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=128, tie_word_embeddings=True, pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    model: Any = Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder / "model")
    draw = random.Random(0)
    with (folder / "prompts.jsonl").open("w") as file:
        for _ in range(4096):
            a, b = draw.randrange(10), draw.randrange(10)
            row = {"prompt": f"{a}+{b}=", "data_source": "add1", "reward_model": {"style": "rule", "ground_truth": str(a + b)}}
            file.write(json.dumps(row) + "\n")


def run(folder: Path, steps: int) -> list[float]:
    """Train ``steps`` steps; return the seconds of each."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    tokenizer: Any = AutoTokenizer.from_pretrained(folder / "model")
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    reference = copy.deepcopy(model).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    seconds = []
    for number in range(steps):
        began = time.perf_counter()
        batch = rows[number * PROMPTS % len(rows) :][:PROMPTS]
        train_step(model, reference, optimizer, tokenizer, batch)
        seconds.append(time.perf_counter() - began)
    return seconds


def train_step(model: Any, reference: Any, optimizer: torch.optim.Optimizer, tokenizer: Any, batch: list[dict[str, Any]]) -> None:
    """Sample, judge, and one update over all rows."""
    prompts = torch.tensor([tokenizer(row["prompt"], add_special_tokens=False).input_ids for row in batch]).repeat_interleave(SESSIONS, 0)
    with torch.no_grad():
        sequences = model.eval().generate(
            input_ids=prompts, attention_mask=torch.ones_like(prompts), do_sample=True, temperature=1.0, top_k=0, max_new_tokens=MOST_TOKENS
        )
    answers = sequences[:, prompts.shape[1] :]
    ended = (answers == tokenizer.eos_token_id).long().cumsum(-1)
    mask = ((ended - (answers == tokenizer.eos_token_id).long()) == 0).float()
    texts = tokenizer.batch_decode([row[keep.bool()] for row, keep in zip(answers, mask, strict=True)], skip_special_tokens=True)
    truths = [row["reward_model"]["ground_truth"] for row in batch for _ in range(SESSIONS)]
    scores = torch.tensor([float(text == truth) for text, truth in zip(texts, truths, strict=True)]).view(PROMPTS, SESSIONS)
    advantages = ((scores - scores.mean(1, keepdim=True)) / (scores.std(1, keepdim=True) + 1e-6)).view(-1, 1)
    with torch.no_grad():
        anchor = token_log_probs(reference, sequences, answers)
    log_probs = token_log_probs(model.train(), sequences, answers)
    ratio = (log_probs - log_probs.detach()).exp()
    losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - CLIP, 1 + CLIP))
    distance = anchor - log_probs
    losses = losses + KL_WEIGHT * (distance.exp() - distance - 1)
    loss = (losses * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def token_log_probs(model: Any, sequences: Tensor, answers: Tensor) -> Tensor:
    """Log-probs of the answers' tokens, [rows, tokens], from one padded forward."""
    logits = model(input_ids=sequences).logits[:, -answers.shape[1] - 1 : -1]
    return torch.log_softmax(logits, -1).gather(-1, answers[..., None])[..., 0]


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        print(json.dumps({"seconds": run(Path(sys.argv[2]), int(sys.argv[3]))}))
