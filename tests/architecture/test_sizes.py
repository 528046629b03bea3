"""Files and functions stay small enough to be read in one sitting."""

from pathlib import Path

import pytest

from tests.architecture import source

LONGEST_FILE = 400
LONGEST_FUNCTION = 60


@pytest.mark.parametrize("path", [*source.modules(), *source.modules("tests")], ids=source.name)
def test_no_file_is_longer_than_400_lines_and_no_function_than_60(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_FILE
    for function in source.functions(path):
        assert function.end_lineno is not None
        length = function.end_lineno - function.lineno + 1
        assert length <= LONGEST_FUNCTION, f"{source.name(path)}:{function.lineno} {function.name} has {length} lines"


def test_every_function_of_the_package_is_annotated() -> None:
    bare = [
        f"{source.name(path)}:{function.lineno} {function.name}"
        for path in source.modules()
        for function in source.functions(path)
        if function.returns is None and function.name != "__init__"
    ]
    assert not bare
