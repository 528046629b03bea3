"""The floors, and what a process must not import."""

import subprocess
import sys

import pytest

WITHOUT_TORCH = (
    "asyncrl.config.load",
    "asyncrl.runtime",
    "asyncrl.runtime.process",
    "asyncrl.transfer_queue.client",
    "asyncrl.transfer_queue.shard",
    "asyncrl.workers.agent",
    "asyncrl.workers.reward",
    "asyncrl.launch.__main__",
    "asyncrl.cli",
)


def test_a_room_imports_only_from_lower_floors() -> None:
    result = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_processes_that_need_no_torch_do_not_import_it(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


def test_the_runtime_imports_neither_numpy_nor_hydra() -> None:
    code = "import sys, asyncrl.runtime; print(sorted({'numpy', 'hydra', 'omegaconf', 'torch', 'asyncrl.config'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr
