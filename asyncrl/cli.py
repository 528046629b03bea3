"""The command line of asyncrl: train, plan, export, bench.

Exit codes: 0 done, 1 the run failed, 2 a wrong configuration or command line, 130 interrupted. Once `train` has become
torchrun, the code is torchrun's: 0, or 1 whatever ended the run.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from asyncrl.config.checks import check_world
from asyncrl.config.load import Loaded, load_config
from asyncrl.config.placement import torchrun_shape
from asyncrl.config.places import shipped_configs
from asyncrl.config.plan import batch_arithmetic
from asyncrl.errors import CheckpointError, ConfigError, DataError
from asyncrl.launch.environment import check_platform
from asyncrl.launch.guard import EXIT_FAILED
from asyncrl.launch.lasting import lasting
from asyncrl.launch.preflight import preflight
from asyncrl.launch.refusal import refuse

Command = Callable[[argparse.Namespace], int]

OPTIONS_HELP = "config=NAME (a shipped one or the path of a YAML file), then options as key=value in verl's dotted names"

TRAIN_HELP = """\
Check the configuration, then start torchrun with one process per rank:

  asyncrl train config=quickstart
  asyncrl train config=quickstart trainer.seed=2 actor_rollout_ref.actor.optim.lr=0
  asyncrl train config=grpo data.train_files=prompts.parquet actor_rollout_ref.model.path=./model

The last line that it prints before torchrun takes over works by itself too.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. ``train`` does not return: torchrun takes this process over."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["bench"]:
        from asyncrl.bench.command import main as bench  # numpy and zmq are of no use to the other commands

        return bench(words[1:])
    parser = command_line()
    given, rest = parser.parse_known_args(words)
    # argparse takes key=value only up to the first --option; the others are left here.
    if unknown := [word for word in rest if word.startswith("-")]:
        parser.error(f"there is no option {' '.join(unknown)}")
    given.options += rest
    try:
        check_platform()
        return int(given.command(given))
    except (ConfigError, DataError) as error:
        return refuse(error)
    except CheckpointError as error:
        print(f"asyncrl: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has seen enough; what is still buffered must not raise at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def train(given: argparse.Namespace) -> int:
    """Validate, then become torchrun, or run here with ``debug=inline``."""
    loaded = load_config(given.options)
    preflight(loaded.config)
    nodes, ranks = _shape(loaded, given.nproc_per_node)
    check_world(loaded.config, nodes * ranks, nodes)
    if nodes > 1:
        command = ["--nnodes", str(nodes), "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d", "--rdzv-id", "JOB"]
        command += ["--rdzv-endpoint", "127.0.0.1:29400", "-m", "asyncrl.launch", *given.options]
        raise ConfigError("trainer.nnodes", nodes, f"start on each node: torchrun {shlex.join(command)}")
    if loaded.config.debug == "inline":
        with lasting():
            from asyncrl.launch.inline import train_inline  # imports torch

        train_inline(loaded)
        return 0
    command = ["--standalone", "--nproc-per-node", str(ranks), "-m", "asyncrl.launch", *given.options]
    print(f"asyncrl: torchrun {shlex.join(command)}", flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *command])


def plan(given: argparse.Namespace) -> int:
    """Print what would run where and stop."""
    loaded = load_config(given.options)
    prompts = preflight(loaded.config)
    nodes, ranks = _shape(loaded, given.nproc_per_node)
    check_world(loaded.config, nodes * ranks, nodes)
    lookahead, updates = _ahead(loaded)
    found = batch_arithmetic(loaded.config, nodes * ranks, nodes, prompts, lookahead=lookahead, updates=updates)
    if given.json:
        print(msgspec.json.encode(found).decode())
    else:
        print(*loaded.notices, found.render(), sep="\n")
    return 0


def _ahead(loaded: Loaded) -> tuple[float | None, int | None]:
    """Look-ahead and local updates of the user's own schedule, where there is one."""
    if loaded.config.trainer.v1.custom_schedule.path is None:
        return None, None
    from asyncrl.launch.schedule import open_schedule

    schedule = open_schedule(loaded.config)
    return schedule.lookahead, schedule.updates


def _shape(loaded: Loaded, given: int | None) -> tuple[int, int]:
    """Nodes, and ranks on each: as given, else as configured, else one per visible GPU, else one."""
    if given is not None and given < 1:
        raise ConfigError("--nproc-per-node", given, "allowed: at least 1")
    return torchrun_shape(loaded.config, given, _devices(loaded))


def _devices(loaded: Loaded) -> int:
    """GPUs that this process sees; one where there are none, or none are wanted."""
    if loaded.config.trainer.device == "cpu":
        return 1
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return max(1, len([name for name in visible.split(",") if name.strip()]))
    return max(1, sum(name.removeprefix("nvidia").isdecimal() for name in os.listdir("/dev")))


def export(given: argparse.Namespace) -> int:
    """Write a checkpoint as a Hugging Face folder."""
    from asyncrl.launch.export import export as write  # imports torch once there is something to read

    step = write(Path(given.run), Path(given.to), print)
    print(f"the weights after step {step} are in {given.to}")
    return 0


def trace(given: argparse.Namespace) -> int:
    """Print what happened to one key of a run's queue."""
    from rich.console import Console

    from asyncrl.observe.events import read_run  # imports zmq
    from asyncrl.observe.trace import life_of, rendered

    run = Path(given.run) if given.run else newest_run()
    if not (run / "events").is_dir():
        raise ConfigError("--run", str(run), "allowed: the folder of a run, with event files in it")
    life = life_of(read_run(run / "events"), given.key)
    if not life.steps:
        print(f"asyncrl trace: nothing in {run} tells of {given.key!r}; keys look like s1e0p7 or s1e0p7_0_0", file=sys.stderr)
        return EXIT_FAILED
    if given.json:
        print(msgspec.json.encode({"key": life.key, "steps": life.steps, "fields": life.fields_now()}).decode())
    else:
        Console(width=None if sys.stdout.isatty() else 140).print(rendered(life))
    return 0


def newest_run() -> Path:
    """The run folder under runs/ that was begun last. Raises ConfigError when there is none."""
    found = sorted((path.parent for path in Path("runs").glob("*/*/events")), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ConfigError("--run", None, "there is no run folder under runs/; name one")
    return found[-1]


def command_line() -> argparse.ArgumentParser:
    """The parser of every command."""
    parser = argparse.ArgumentParser(
        prog="asyncrl", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _configured(commands, "train", train, "train a model", TRAIN_HELP)
    text = "Check the configuration and the files, print the plan, start nothing."
    planning = _configured(commands, "plan", plan, "print what would run where, and the arithmetic of a step", text)
    planning.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    text = "Write the newest checkpoint of a run folder as a Hugging Face folder: asyncrl export runs/quickstart/... --to model"
    exporting = commands.add_parser("export", help="write a checkpoint as a Hugging Face model", description=text, allow_abbrev=False)
    exporting.add_argument("run", metavar="RUN", help="the run folder")
    exporting.add_argument("--to", required=True, metavar="DIR", help="the folder to write, which must not be there yet")
    exporting.set_defaults(command=export, options=[])
    text = "Print the life of one key of the TransferQueue, of a run that goes on or has ended: asyncrl trace s1e0p7_0_0"
    tracing = commands.add_parser("trace", help="what happened to one row, and who did it", description=text, allow_abbrev=False)
    tracing.add_argument("key", metavar="KEY", help="a row (s1e0p7_0_0), or a prompt with all its rows (s1e0p7)")
    tracing.add_argument("--run", metavar="DIR", help="the run folder (default: the newest one under runs/)")
    tracing.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    tracing.set_defaults(command=trace, options=[])
    commands.add_parser("bench", help="measure against a floor or a peer; see asyncrl bench --help", add_help=False)
    return parser


def _configured(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, command: Command, summary: str, text: str
) -> argparse.ArgumentParser:
    """A command that takes a configuration."""
    sub = commands.add_parser(
        name,
        help=summary,
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"shipped configurations: {', '.join(shipped_configs())}",
        allow_abbrev=False,
    )
    sub.add_argument("options", nargs="*", metavar="key=value", help=OPTIONS_HELP)
    ranks = "ranks on this node (default: trainer.n_gpus_per_node, else one per GPU)"
    sub.add_argument("--nproc-per-node", type=int, metavar="N", help=ranks)
    sub.set_defaults(command=command)
    return sub


if __name__ == "__main__":
    sys.exit(main())
