"""The checkpoints of a run folder, for the controller."""

from asyncrl.config.schema import Config
from asyncrl.launch.run_folder import RunFolder
from asyncrl.launch.session import say
from asyncrl.training.checkpoint import Checkpoint, CheckpointFolder


def checkpoint_folder(config: Config, folder: RunFolder) -> CheckpointFolder:
    """Where the run saves."""
    return CheckpointFolder(str(folder.path), config.trainer.max_actor_ckpt_to_keep)


def newest_checkpoint(config: Config, folder: RunFolder) -> Checkpoint | None:
    """What the run goes on from: the newest checkpoint that is what its manifest says, or nothing."""
    return checkpoint_folder(config, folder).newest(say)
