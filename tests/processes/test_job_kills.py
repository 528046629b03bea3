"""The whole job killed at any point, in every mode, and started again: nothing finished is lost, and one step at most is learned again."""

from pathlib import Path

import pytest

from tests.processes.job_kill import KILLED_AT, MODES, check_accounts, final_state, kill_and_go_on, run_whole, same_bits
from tests.processes.mortal import POINTS

HEAD = """
| mode | killed | resumed after | learned again | finished at the kill | generated again | issued again | same bits |
|---|---|---:|---|---:|---:|---:|---|"""
SOON = (("sync", "written"), ("colocate_async", "gathering"), ("separate_async", "learning"))
"""What the suite tries; the others run with ``make faults``."""
WRITING = ("generating", "gathering")
"""Points at which the checkpoint of the step before may still be in writing."""
BEFORE = ("learning", "learned", "saving", "written", "sealed")
"""Points at which it is there, and that of the step is not."""


def resumes_after(point: str) -> tuple[int, ...]:
    """The checkpoints with which the second attempt may begin."""
    if point in WRITING:
        return KILLED_AT - 2, KILLED_AT - 1
    return (KILLED_AT - 1,) if point in BEFORE else (KILLED_AT,)


CASES = [
    pytest.param(mode, point, id=f"{mode}-{point}", marks=[] if (mode, point) in SOON else pytest.mark.faults)
    for mode in MODES
    for point in POINTS
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run_whole(folder, "sync")
    return folder


@pytest.fixture(scope="module")
def head() -> list[str]:
    """What stands above the first row that is printed, and above no other."""
    return [HEAD]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("mode", "point"), CASES)
def test_a_job_that_is_killed_whole_goes_on_where_it_was(
    mode: str, point: str, head: list[str], tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    found = kill_and_go_on(folder, mode, point)
    same = None
    if mode == "sync":
        same = same_bits(final_state(folder), final_state(request.getfixturevalue("uninterrupted")))
    cells = [mode, POINTS[point], found.resumed_after, found.learned_again or "none", len(found.finished), len(found.again), found.reissued]
    with capsys.disabled():
        print("\n".join([*head, f"| {' | '.join(map(str, cells))} | {'' if same is None else 'yes' if same else 'NO'} |"]))
    head.clear()
    assert found.resumed_after in resumes_after(point)
    assert len(found.learned_again) <= 1
    assert found.again == []
    assert same in (None, True)
    check_accounts(folder)
