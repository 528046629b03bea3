"""The shipped fake: its script, and that it needs no torch."""

import subprocess
import sys

import pytest

from asyncrl.errors import RolloutError
from asyncrl.rollout.scripted import ScriptedEngine, by_session
from asyncrl.trajectory import GenerateOutput, StopReason
from tests.unit.rollout.tiny import ask


def drain(engine: ScriptedEngine) -> dict[str, GenerateOutput]:
    outputs: dict[str, GenerateOutput] = {}
    while engine.unfinished:
        outputs |= {output.request_id: output for output in engine.step()}
    return outputs


def test_each_session_gets_its_answer_and_a_continued_one_the_rest() -> None:
    engine = ScriptedEngine(by_session({("u0", "0"): [7, 8, 9], ("u0", "1"): [6]}), log_prob=-0.5)
    engine.load(3, [])
    engine.submit([ask(0, 2), ask(0, 2, session=1)])
    outputs = drain(engine)
    assert outputs["r0_0"].token_ids == [7, 8, 9]
    assert outputs["r0_0"].log_probs == [-0.5] * 3
    assert outputs["r0_0"].versions == [3] * 3
    assert outputs["r0_1"].stop_reason is StopReason.STOP
    engine.submit([ask(0, 3, drawn=1)])
    assert drain(engine)["r0_0"].token_ids == [8, 9]
    assert engine.loads == [(3, [])]


def test_a_request_the_script_has_nothing_for_is_refused() -> None:
    engine = ScriptedEngine(lambda request: [])
    with pytest.raises(RolloutError, match="no token"):
        engine.submit([ask(0, 1)])


def test_port_and_fake_are_imported_without_torch() -> None:
    code = "import sys, asyncrl.rollout.engine, asyncrl.rollout.scripted; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
