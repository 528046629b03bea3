"""Links lead somewhere, options exist, and the pages speak of the project alone."""

import re
from pathlib import Path

import pytest

from asyncrl.config.names import options, sections
from asyncrl.config.verl_names import defaults, known_name
from tests.docs.pages import DOCS, PAGES, ROOT, code_words, links

HEADS = {name.split(".")[0] for name in (*options(), *defaults())}
OPTION = re.compile(r"^\+?([a-z_]+(?:\.[A-Za-z_0-9]+)+)(?:=.*)?$")

FORBIDDEN = [
    (re.compile(r"(?<![\w&])#\d+"), "a number of a ticket"),
    (re.compile(r"\b(?:issues? \d+|issue tracker|tickets?|milestones?|roadmap|sprint)\b", re.IGNORECASE), "how the project is run"),
    (re.compile(r"(?<![\w.])/(?:work|tmp|home|root|mnt)/"), "a path of one machine"),
    (re.compile(r"pypi|artifactory|nexus|index-url|conda-forge|docker\.io|ghcr\.io", re.IGNORECASE), "the host of a registry"),
    (re.compile(r"\b(?:will be|coming soon|planned|next release|TODO|FIXME)\b", re.IGNORECASE), "a promise"),
    (re.compile(r"\bthe spec\b", re.IGNORECASE), "a paper that the reader does not have"),
]


def resolves(target: str, page: Path) -> bool:
    """Whether a relative link leads to a file, and its anchor to a heading."""
    name, _, anchor = target.partition("#")
    file = (page.parent / name).resolve() if name else page
    if not file.exists() or not file.is_relative_to(ROOT):
        return False
    headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
    return not anchor or anchor in [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def option_names(page: Path) -> list[str]:
    """The dotted options in backticks, without ``+`` and value."""
    found = (OPTION.match(word) for word in code_words(page))
    return [match.group(1) for match in found if match is not None and match.group(1).split(".")[0] in HEADS]


def exists(name: str) -> bool:
    """Whether a dotted name is an option or section of ours or of verl."""
    return name in options() or name in sections() or name in defaults() or known_name(name) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_resolve(page: Path) -> None:
    broken = [target for target in links(page) if not target.startswith("https://") and not resolves(target, page)]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_options_exist(page: Path) -> None:
    assert [name for name in option_names(page) if not exists(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_speak_of_the_project_alone(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = [f"{why}: {match.group()!r}" for pattern, why in FORBIDDEN for match in pattern.finditer(text)]
    assert not found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_of_the_package_exist(page: Path) -> None:
    named = [word for word in code_words(page) if re.match(r"^(?:asyncrl|tests|configs|docs)/[\w/.]*$", word)]
    assert [word for word in named if not (ROOT / word).exists()] == []


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {(ROOT / target).resolve() for target in links(ROOT / "README.md") if not target.startswith("https://")}
    assert [page.name for page in DOCS.rglob("*.md") if page.resolve() not in linked] == []


def test_every_option_is_listed() -> None:
    text = (DOCS / "options.md").read_text(encoding="utf-8")
    assert [name for name in options() if f"| `{name}` |" not in text] == []


def test_the_option_check_finds_a_typo() -> None:
    assert exists("trainer.seed")
    assert exists("trainer.use_v1")
    assert not exists("trainer.sed")
