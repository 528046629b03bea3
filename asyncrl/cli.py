"""The command line: ``asyncrl train | plan``.

Exit codes: 0 done, 1 the run failed, 2 a wrong configuration or command line, 130 interrupted.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

import msgspec

from asyncrl.config.checks import check_world
from asyncrl.config.load import Loaded, load_config
from asyncrl.config.places import shipped_configs
from asyncrl.config.plan import batch_arithmetic
from asyncrl.errors import ConfigError, DataError
from asyncrl.launch.environment import check_platform
from asyncrl.launch.preflight import preflight
from asyncrl.launch.refusal import refuse

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
    parser = _parser()
    given, rest = parser.parse_known_args(arguments)
    # argparse takes key=value only up to the first --option; the others are left here.
    if unknown := [word for word in rest if word.startswith("-")]:
        parser.error(f"there is no option {' '.join(unknown)}")
    given.options += rest
    try:
        check_platform()
        return int(given.command(given))
    except (ConfigError, DataError) as error:
        return refuse(error)
    except KeyboardInterrupt:
        return 130


def train(given: argparse.Namespace) -> int:
    """Validate, then become torchrun."""
    loaded = load_config(given.options)
    preflight(loaded.config)
    ranks = _ranks(loaded, given.nproc_per_node)
    check_world(loaded.config, ranks, 1)
    command = ["--standalone", "--nproc-per-node", str(ranks), "-m", "asyncrl.launch", *given.options]
    print(f"asyncrl: torchrun {shlex.join(command)}", flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *command])


def plan(given: argparse.Namespace) -> int:
    """Print what would run where and stop."""
    loaded = load_config(given.options)
    prompts = preflight(loaded.config)
    nodes = loaded.config.trainer.nnodes or 1
    ranks = nodes * _ranks(loaded, given.nproc_per_node)
    check_world(loaded.config, ranks, nodes)
    found = batch_arithmetic(loaded.config, ranks, nodes, prompts)
    if given.json:
        print(msgspec.json.encode(found).decode())
    else:
        print(*loaded.notices, found.render(), sep="\n")
    return 0


def _ranks(loaded: Loaded, given: int | None) -> int:
    """Ranks on this node: as given, else as configured, else one per visible GPU, else one."""
    if given is not None:
        if given < 1:
            raise ConfigError("--nproc-per-node", given, "allowed: at least 1")
        return given
    configured = loaded.config.trainer.n_gpus_per_node
    if configured is not None:
        return configured
    if loaded.config.trainer.device == "cpu":
        return 1
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return max(1, len([name for name in visible.split(",") if name.strip()]))
    return max(1, sum(name.removeprefix("nvidia").isdecimal() for name in os.listdir("/dev")))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="asyncrl", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, command, summary, text in (
        ("train", train, "train a model", TRAIN_HELP),
        (
            "plan",
            plan,
            "print what would run where, and the arithmetic of a step",
            "Check the configuration and the files, print the plan, start nothing.",
        ),
    ):
        sub = commands.add_parser(
            name,
            help=summary,
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=f"shipped configurations: {', '.join(shipped_configs())}",
            allow_abbrev=False,
        )
        sub.add_argument("options", nargs="*", metavar="key=value", help=OPTIONS_HELP)
        sub.add_argument(
            "--nproc-per-node", type=int, metavar="N", help="ranks on this node (default: trainer.n_gpus_per_node, else one per GPU)"
        )
        if name == "plan":
            sub.add_argument("--json", action="store_true", help="one JSON object instead of a table")
        sub.set_defaults(command=command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
