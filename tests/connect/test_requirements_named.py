"""Every requirement of the Connect runtime, and every defect that must not be ours, has a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent

#: Requirements and defects that no test names yet; nothing may be added.
MISSING: dict[str, set[int]] = {
    "requirement": set(),
    "defect": set(),
}
COUNT = {"requirement": 53, "defect": 15}


def named(kind: str) -> set[int]:
    found: set[int] = set()
    for path in FOLDER.rglob("test_*.py"):
        for numbers in re.findall(rf"mark\.{kind}\(([\d, ]+)\)", path.read_text()):
            found |= {int(number) for number in numbers.split(",")}
    return found


@pytest.mark.parametrize("kind", COUNT)
def test_each_is_named_by_a_test_or_known_to_be_missing(kind: str) -> None:
    every = set(range(1, COUNT[kind] + 1))
    assert named(kind) <= every
    assert every - named(kind) == MISSING[kind]
