"""The house does not grow: what was reached is held."""

from __future__ import annotations

import pytest

from tests.house.figures import figures, too_large
from tests.house.passage import modules_of_a_count


@pytest.mark.budget(3)
def test_the_package_is_no_larger_than_it_was() -> None:
    assert too_large(figures()) == {}


@pytest.mark.budget(3)
def test_a_count_enters_no_more_modules_than_it_did() -> None:
    # What is entered once in a process (a cache that is filled) may be entered here.
    assert 20 < len(modules_of_a_count()) <= 130
