"""The script that makes the quickstart's files: ``python -m asyncrl.quickstart.build [TASK ...] [--check] [--seed N] [--to FOLDER]``.

For each task (``add1``, ``add2``; without a name, both) it trains the start weights for a few supervised steps with one
thread, writes model, tokenizer and prompts, and records beside them on which kind of CPU, with which libraries and with
which result. ``--check`` builds into a temporary folder and compares the bytes with the shipped files. The bytes are
promised for one thread, the recorded kind of CPU and the recorded library versions; elsewhere the rounding of sums may
differ.
"""

import argparse
import hashlib
import platform
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

from asyncrl.quickstart.assets import MODEL_FOLDER, RECORD_FILE
from asyncrl.quickstart.split import Split, pairs_digest
from asyncrl.quickstart.tasks import TASKS, Task

MODEL_FILES = (
    f"{MODEL_FOLDER}/config.json",
    f"{MODEL_FOLDER}/generation_config.json",
    f"{MODEL_FOLDER}/model.safetensors",
    f"{MODEL_FOLDER}/tokenizer.json",
    f"{MODEL_FOLDER}/tokenizer_config.json",
)


class SplitRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was held out of the warm-up and of the training prompts."""

    trained_pairs: int
    held_out_pairs: int
    held_out_sha256: str
    """Of the sorted held-out pairs, one ``LEFT+RIGHT`` a line."""


class BuildRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the shipped files were made; lies beside them as ``BUILD.json``."""

    cpu: str
    """The processor's own name."""
    cpu_capability: str
    """The instruction set that torch chose."""
    threads: int
    torch: str
    transformers: str
    seed: int
    steps: int
    """Supervised steps."""
    accuracy: float
    """Greedy accuracy on the judged sums after the last of them: of all hundred one-digit ones, of held-out two-digit ones."""
    parameters: int
    sha256: dict[str, str]
    """Of every built file, by its path."""
    split: SplitRecord | None = None
    """None when all pairs are trained."""


def built_files(task: Task) -> list[str]:
    """Every file whose bytes a second build repeats."""
    return [*MODEL_FILES, *task.prompt_files]


def build(task: Task, folder: Path, seed: int) -> BuildRecord:
    """Write every file into ``folder`` and return the record, which is written too."""
    import torch
    import transformers

    from asyncrl.quickstart.tokenizer import write_tokenizer
    from asyncrl.quickstart.warmup import warm_up

    torch.set_num_threads(1)
    model_folder = folder / MODEL_FOLDER
    model_folder.mkdir(parents=True, exist_ok=True)
    warm = warm_up(task, seed)
    warm.model.save_pretrained(model_folder)
    (model_folder / "model.safetensors").chmod(0o644)
    write_tokenizer(model_folder)
    for name, rows in task.prompt_files.items():
        (folder / name).write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    record = BuildRecord(
        cpu=cpu_name(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
        torch=str(torch.__version__),
        transformers=transformers.__version__,
        seed=seed,
        steps=warm.steps,
        accuracy=warm.accuracy,
        parameters=sum(parameter.numel() for parameter in warm.model.parameters()),
        sha256={name: digest(folder / name) for name in built_files(task)},
        split=split_record(task.split),
    )
    (folder / RECORD_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    return record


def split_record(split: Split) -> SplitRecord | None:
    """The record of ``split``, which refused a pair on both sides when it was made; None when nothing is held out."""
    if not split.held_out:
        return None
    assert not set(split.trained) & set(split.held_out)
    return SplitRecord(trained_pairs=len(split.trained), held_out_pairs=len(split.held_out), held_out_sha256=pairs_digest(split.held_out))


def differences(files: Iterable[str], shipped: Path, rebuilt: Path) -> list[str]:
    """The files whose bytes differ between two folders, or that one of them lacks."""

    def content(path: Path) -> bytes | None:
        return path.read_bytes() if path.is_file() else None

    return [name for name in files if content(shipped / name) != content(rebuilt / name)]


def check(task: Task, shipped: Path) -> list[str]:
    """Build again from the recorded seed and return what differs; prints what makes a difference explicable."""
    recorded = read_record(shipped)
    with tempfile.TemporaryDirectory() as scratch:
        rebuilt = build(task, Path(scratch), recorded.seed)
        different = differences(built_files(task), shipped, Path(scratch))
    if conditions(recorded) != conditions(rebuilt):
        print(f"recorded with {conditions(recorded)}, here {conditions(rebuilt)}; bytes are promised for the recorded ones only")
    return different


def conditions(record: BuildRecord) -> str:
    """What must be equal for the bytes to be equal."""
    return f"{record.cpu} ({record.cpu_capability}), torch {record.torch}, transformers {record.transformers}"


def read_record(folder: Path) -> BuildRecord:
    """The record beside the shipped files."""
    return msgspec.json.decode((folder / RECORD_FILE).read_bytes(), type=BuildRecord)


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def cpu_name() -> str:
    """What the processor calls itself."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main(arguments: list[str] | None = None) -> int:
    """Build or check; returns the exit code: 1 when a checked file differs."""
    parser = argparse.ArgumentParser(prog="python -m asyncrl.quickstart.build", description="Make or check the quickstart's files.")
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"{' or '.join(TASKS)} (default: each)")
    parser.add_argument("--check", action="store_true", help="build into a temporary folder and compare the bytes")
    parser.add_argument("--seed", type=int, help="seed of weights and warm-up (default: the task's); not used by --check")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="the folder to write or check, for one task (default: the shipped one)")
    options = parser.parse_args(arguments)
    names = options.tasks or list(TASKS)
    unknown = [name for name in names if name not in TASKS]
    if unknown:
        parser.error(f"unknown task {', '.join(unknown)}; there are {', '.join(TASKS)}")
    if options.to is not None and len(names) > 1:
        parser.error(f"--to takes the folder of one task, not of {', '.join(names)}")
    return max(run(TASKS[name](), options.to, options.seed, checking=options.check) for name in names)


def run(task: Task, folder: Path | None, seed: int | None, *, checking: bool) -> int:
    """Build or check one task, say the result, and return the exit code."""
    place = task.folder if folder is None else folder
    if checking:
        different = check(task, place)
        print(f"{task.name}: " + (f"differs: {', '.join(different)}" if different else "all files are rebuilt byte for byte"))
        return 1 if different else 0
    record = build(task, place, task.seed if seed is None else seed)
    print(f"{place}: accuracy {record.accuracy:.3f} after {record.steps} supervised steps, {record.parameters:,} parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
