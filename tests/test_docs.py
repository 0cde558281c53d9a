"""The documentation tells the truth: its examples run, its links lead somewhere."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from headrace import errors
from headrace.cli.app import app
from headrace.settings import JobSettings

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]

# A block that names one of these needs Spark or a broker: it is compiled, and its names are looked
# up, but it is not run.
NEEDS_MORE = re.compile(
    r"\b(StreamJob|TransactionJob|register|spark|Client|Producer|PullConsumer|Admin)\b"
)

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    #: Lines of the page before its first line.
    before: int
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(found[1], text.count("\n", 0, found.start(2)), found[2])
        for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    ]


def compiled(page: Path, block: Block) -> tuple[str, ast.Module]:
    """Parse a block so that its lines have the numbers that they have in the page."""
    source = "\n" * block.before + block.text
    return source, ast.parse(source, str(page))


@by_page
def test_python_examples_run_and_print_what_the_page_shows(page: Path) -> None:
    found = blocks(page)
    names: dict[str, object] = {"__name__": "docs_example"}
    for number, block in enumerate(found):
        if block.language != "python":
            continue
        source, _ = compiled(page, block)
        code = compile(source, str(page), "exec", dont_inherit=True)
        if NEEDS_MORE.search(block.text):
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        if printed.getvalue():
            shown = found[number + 1] if number + 1 < len(found) else None
            assert shown is not None
            assert shown.language == "text", block.text
            assert shown.text.rstrip() == printed.getvalue().rstrip()


@by_page
def test_names_and_settings_in_examples_exist(page: Path) -> None:
    settings = {field.name for field in dataclasses.fields(JobSettings)}
    for block in blocks(page):
        if block.language != "python":
            continue
        for node in ast.walk(compiled(page, block)[1]):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headrace"):
                module = importlib.import_module(node.module or "")
                missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                assert missing == [], block.text
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "JobSettings":
                assert {keyword.arg for keyword in node.keywords} <= settings


def headrace_commands(block: Block) -> Iterator[list[str]]:
    for line in block.text.splitlines():
        for part in re.split(r"[|&]+", line.partition("#")[0]):
            words = shlex.split(part)
            if words and words[0] == "headrace":
                yield words[1:]


@by_page
def test_commands_in_examples_exist_with_their_options(page: Path) -> None:
    root = typer.main.get_command(app)
    for block in blocks(page):
        if block.language != "sh":
            continue
        for words in headrace_commands(block):
            command = root
            rest = list(words)
            while children := getattr(command, "commands", None):
                # A group may do something by itself, too.
                if getattr(command, "invoke_without_command", False) and (
                    not rest or rest[0].startswith("-")
                ):
                    break
                command = children[rest.pop(0)]
            options = {option for parameter in command.params for option in parameter.opts}
            used = {word.partition("=")[0] for word in rest if word.startswith("--")}
            assert used <= options, words


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@by_page
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_index_names_every_page() -> None:
    index = (DOCS / "README.md").read_text()
    pages = [page.relative_to(DOCS).as_posix() for page in PAGES if page.is_relative_to(DOCS)]
    assert [page for page in pages if page != "README.md" and f"({page})" not in index] == []


def test_architecture_names_every_package_and_only_what_there_is() -> None:
    page = (DOCS / "architecture.md").read_text()
    package = ROOT / "src" / "headrace"
    packages = {path.parent.name for path in package.glob("*/__init__.py")}
    described = set(re.findall(r"^\*\*`(\w+)`\*\*", page, re.MULTILINE))
    assert described == packages
    for path in re.findall(r"`((?:cli|broker|client|protocol|runtime|spark|store)/[\w/.]+)`", page):
        assert (package / path).exists(), path


def error_sections() -> dict[str, str]:
    page = (DOCS / "reference/errors.md").read_text()
    parts = re.split(r"^### `(\w+)`\n", page, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def error_classes() -> list[type[errors.HeadraceError]]:
    return [
        thing
        for thing in vars(errors).values()
        if isinstance(thing, type) and issubclass(thing, errors.HeadraceError)
    ]


def test_troubleshooting_explains_every_error() -> None:
    assert set(error_sections()) == {kind.__name__ for kind in error_classes()}


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_troubleshooting_says_what_programs_see(kind: type[errors.HeadraceError]) -> None:
    section = error_sections()[kind.__name__]
    passes = "may pass by itself" if kind.retriable else "does not pass by itself"
    first = section.strip().splitlines()[0]
    assert first == f"Code `{kind.code}`; {passes}."
    for part in ("**Means.**", "**Do.**"):
        assert part in section
