"""JStorm's requirements R1 to R43: each is named by a test, or a class of tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent.parent
COUNT = 43
#: ``r21_to_r23`` and ``R21 to R23``, ``r8_and_r10`` and ``R8, R10``.
_RANGE = re.compile(r"\br(\d+)[ _]to[ _]r(\d+)\b")
_ONE = re.compile(r"\br(\d+)\b")


def named(text: str) -> set[int]:
    """The requirements that a text names.

    >>> sorted(named("test_r15_to_r17_and_r2_hold")), sorted(named("R5 and R38: the same."))
    ([2, 15, 16, 17], [5, 38])
    """
    lower = text.lower().replace("_", " ")
    found = {int(number) for number in _ONE.findall(lower)}
    for first, last in _RANGE.findall(lower):
        found |= set(range(int(first), int(last) + 1))
    return found


def found_in(path: Path) -> Iterator[tuple[str, set[int]]]:
    """The tests of a file, and the requirements that each names: in its name or its first line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.lower()[:4] == "test":
            (first, *_) = (ast.get_docstring(node) or "").splitlines() or [""]
            yield node.name, named(f"{node.name} {first}")


def test_every_requirement_is_named_by_a_test() -> None:
    found = {
        number
        for path in TESTS.rglob("test_*.py")
        if "R" in path.read_text() or "_r" in path.read_text()
        for _, numbers in found_in(path)
        for number in numbers
    }
    assert sorted(set(range(1, COUNT + 1)) - found) == []
