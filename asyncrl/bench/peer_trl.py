"""TRL's GRPOTrainer on the work of ``asyncrl bench step``; run by path in an interpreter that has TRL, so it imports nothing of ours.

python peer_trl.py FOLDER STEPS          FOLDER as made by ``asyncrl.bench.plain_step make``; the last line is {"seconds": [...]}
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def main(folder: Path, steps: int) -> None:
    """Train ``steps`` steps and print what each took."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    data = Dataset.from_list([{"prompt": row["prompt"], "truth": row["reward_model"]["ground_truth"]} for row in rows])

    def exact(completions: list[str], truth: list[str], **_: Any) -> list[float]:
        return [float(text.partition("<")[0] == wanted) for text, wanted in zip(completions, truth, strict=True)]

    class Clock(TrainerCallback):
        """Notes when each step ended."""

        def __init__(self) -> None:
            self.ends = [time.perf_counter()]

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as output:
        settings = GRPOConfig(
            output_dir=output, use_cpu=True, bf16=False, per_device_train_batch_size=512, num_generations=16, max_completion_length=8,
            max_steps=steps, learning_rate=5e-4, beta=0.001, temperature=1.0, save_strategy="no", report_to=[], disable_tqdm=True,
            gradient_checkpointing=False, dataloader_num_workers=0, logging_steps=1000,
        )  # fmt: skip
        trainer = GRPOTrainer(model=str(folder / "model"), reward_funcs=exact, args=settings, train_dataset=data)
        clock = Clock()
        trainer.add_callback(clock)
        trainer.train()
    print(json.dumps({"seconds": [end - start for start, end in zip(clock.ends, clock.ends[1:], strict=False)]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
