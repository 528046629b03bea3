"""The log of a process of a run: nothing a library does to the root logger takes it away."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.launch.run_folder import RunFolder, log_to


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    """A run folder; the loggers are given back as they were."""
    ours, root = logging.getLogger("asyncrl"), logging.getLogger()
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in (ours, root)]
    made = RunFolder(tmp_path)
    made.logs.mkdir()
    yield made
    for handler in {*ours.handlers} - {*before[0][1]}:
        handler.close()
    for logger, handlers, level, propagate in before:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


def test_a_library_that_resets_the_root_logger_silences_nothing(folder: RunFolder) -> None:
    log_to(folder, "rank0")
    logger = logging.getLogger("asyncrl.transfer_queue.shard")
    logger.info("before")
    logging.basicConfig(force=True, level=logging.ERROR, handlers=[logging.NullHandler()])
    logging.getLogger().setLevel(logging.CRITICAL)
    logger.info("after")
    lines = (folder.logs / "rank0.log").read_text().splitlines()
    assert [line.split(" INFO ")[1] for line in lines] == ["before", "after"]
