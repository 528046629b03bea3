"""A checkpoint leaves as a folder that plain transformers loads, with the weights of its step."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncrl.cli import main
from tests.processes.test_worked_example import SMALL, WORKED
from tests.processes.warm_ranks import run_scenario


@pytest.mark.timeout(180)
def test_an_exported_checkpoint_gives_the_logits_of_the_weights_that_were_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_scenario(
        tmp_path, 2, [WORKED, WORKED], *SMALL, "trainer.save_freq=1", "trainer.max_actor_ckpt_to_keep=1", "trainer.total_training_steps=2"
    )
    assert not (tmp_path / "run" / "global_step_1").exists()
    assert main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "model")]) == 0
    assert "after step 2" in capsys.readouterr().out
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    trained = AutoModelForCausalLM.from_config(exported.config).eval()  # type: ignore[no-untyped-call]
    trained.load_state_dict(load_file(tmp_path / "weights_2.safetensors"), strict=False)
    ids = torch.tensor([AutoTokenizer.from_pretrained(tmp_path / "model")("3+4=", add_special_tokens=False).input_ids])
    assert torch.equal(exported(ids).logits, trained(ids).logits)
    assert exported.lm_head.weight is exported.model.embed_tokens.weight


def test_a_folder_without_a_run_or_a_target_that_exists_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path), "--to", str(tmp_path / "model")]) == 1
    assert "is no run folder" in capsys.readouterr().err
