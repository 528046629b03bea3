"""The pages of the documentation, and the blocks, links and names in them."""

import doctest
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES: list[Path] = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md")),
    *sorted(DOCS.rglob("*.md")),
]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_OUTPUT = re.compile(r"\s*^```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. ``place`` is page and line, for messages."""

    page: Path
    place: str
    language: str
    text: str
    output: str | None = None
    """Of a Python block: what it prints, if a text block says so directly behind it."""

    @property
    def file(self) -> str:
        """The name in a first line ``# name.py``, under which later blocks of the page may import it."""
        found = re.match(r"# (\w+\.py)\n", self.text)
        return found.group(1) if found else ""


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page,
            f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}",
            found.group(1),
            found.group(2),
            _output_behind(text, found.end()) if found.group(1) == "python" else None,
        )
        for found in _BLOCK.finditer(text)
    ]


def _output_behind(text: str, place: int) -> str | None:
    found = _OUTPUT.match(text, place)
    return found.group(1) if found else None


def shows(expected: str, printed: str) -> bool:
    """Whether a program printed what its page says; ``...`` there stands for anything."""
    return doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS)


def of_language(language: str) -> list[Block]:
    """All blocks of a language, page by page."""
    return [block for page in PAGES for block in blocks(page) if block.language == language]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """Targets of all links and pictures of a page."""
    return _LINK.findall(prose(page))


def code_words(page: Path) -> list[str]:
    """What stands in single backticks outside blocks."""
    return _CODE.findall(prose(page))


def commands(block: Block) -> list[str]:
    """The command lines of a shell block, continued lines joined."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
