"""The pictures of the shipped runs, drawn from run folders written here."""

import json
from pathlib import Path

import pytest

from asyncrl.quickstart.pictures import HELD_OUT, ONE_DIGIT, SAMPLED, TRAINED, control_curves, generalise_curves, main


def run_folder(folder: Path, gain: float) -> Path:
    folder.mkdir()
    records = [{"step": step, SAMPLED: gain * step} | ({HELD_OUT: 0.3, TRAINED: 0.4} if step % 2 == 0 else {}) for step in range(5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def test_the_curves_of_a_run_hold_each_metric_at_the_steps_that_report_it(tmp_path: Path) -> None:
    held_out, trained, sampled = generalise_curves(run_folder(tmp_path / "run", 0.1))
    assert (held_out.steps, held_out.values) == ((0, 2, 4), (0.3, 0.3, 0.3))
    assert trained.values == (0.4, 0.4, 0.4)
    assert sampled.values == pytest.approx((0.0, 0.1, 0.2, 0.3, 0.4))


def test_the_command_draws_both_pictures(tmp_path: Path) -> None:
    runs = [str(run_folder(tmp_path / name, 0.1)) for name in ("right", "lr0", "reversed", "coin")]
    assert [line.label for line in control_curves([Path(run) for run in runs])] == [
        "right reward",
        "learning rate 0",
        "reversed reward",
        "coin",
    ]
    assert main(["generalise", str(tmp_path / "one.png"), runs[0]]) == 0
    assert main(["controls", str(tmp_path / "four.png"), *runs]) == 0
    for name in ("one.png", "four.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_a_run_of_another_task_is_refused_by_the_name_of_the_metric(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 0, "val-core/add1_train/acc/mean@1": 0.3}\n')
    with pytest.raises(ValueError, match="val-core/add2_heldout/acc/mean@1"):
        generalise_curves(folder)


def test_the_modes_are_drawn_and_told_by_step_and_by_the_clock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = []
    for number, name in enumerate(("s", "c", "e")):
        folder = tmp_path / name
        folder.mkdir()
        start = {"step": 0, ONE_DIGIT: 0.36, "timing_s/testing": 1.0}
        steps = [{"step": step, "timing_s/step": 2.0 + number} for step in (1, 2)]
        records = [start, steps[0], steps[1] | {ONE_DIGIT: 0.5 + number / 10, "timing_s/testing": 0.5}]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        runs.append(str(folder))
    assert main(["modes", str(tmp_path / "modes.png"), *runs]) == 0
    assert (tmp_path / "modes.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.splitlines() == [
        "| step | sync | colocate_async | separate_async |",
        "|---:|---:|---:|---:|",
        "| 0 | 0.36 (1 s) | 0.36 (1 s) | 0.36 (1 s) |",
        "| 2 | 0.50 (6 s) | 0.60 (8 s) | 0.70 (10 s) |",
    ]
