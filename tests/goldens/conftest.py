"""Prints the count of golden cases per file at the end of a run."""

import pytest

from tests.goldens import tally


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = tally.lines()
    if lines:
        terminalreporter.section("golden cases")
        for line in lines:
            terminalreporter.write_line(line)
