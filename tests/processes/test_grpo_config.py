"""``config=grpo`` on a local Hugging Face folder and a Parquet file, as a user has them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.observe.curve import read_metrics
from asyncrl.quickstart.assets import ADD1
from tests.processes.invariants import training_steps
from tests.processes.launching import ROOT
from tests.processes.warm_ranks import warm_ranks

TEMPLATE = '{% for message in messages %}{{ message["content"] }}{% endfor %}{% if add_generation_prompt %}={% endif %}'


def write_prompts(folder: Path) -> Path:
    """Twelve chat prompts with their answers."""
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{a}+{b}"}],
            "data_source": "sums",
            "reward_model": {"style": "rule", "ground_truth": str(a + b)},
            "extra_info": {"index": 10 * a + b} if a else None,
        }
        for a in range(3)
        for b in range(4)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "prompts.parquet")
    return folder / "prompts.parquet"


@pytest.mark.timeout(150)
def test_three_steps_from_a_parquet_file_of_chat_prompts(tmp_path: Path) -> None:
    options = [
        "config=grpo",
        f"data.train_files={write_prompts(tmp_path)}",
        "data.train_batch_size=4",
        "data.max_prompt_length=8",
        "data.max_response_length=4",
        f"actor_rollout_ref.model.path={ADD1 / 'model'}",
        f"actor_rollout_ref.model.custom_chat_template='{TEMPLATE}'",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.rollout.n=4",
        f"reward.custom_reward_function.path={ROOT / 'asyncrl/quickstart/reward.py'}",
        "trainer.total_training_steps=3",
        "trainer.device=cpu",
        "trainer.n_gpus_per_node=2",
        f"trainer.default_local_dir={tmp_path / 'run'}",
    ]
    warm_ranks(2).run(options)
    steps = training_steps(read_metrics(tmp_path / "run"))
    assert [record["step"] for record in steps] == [1, 2, 3]
    assert all(record["training/rows_trained"] == 16 and record["training/weights_changed"] == 1.0 for record in steps)
    assert all(record["prompt_length/mean"] == 4.0 for record in steps)
