"""Names of connectors: what a path can carry."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, strategies as st

from headrace.connect.naming import UnitId, check_name
from headrace.errors import ConnectorNameError


@pytest.mark.parametrize("name", ["orders", "a b", "1", "Größe", "x-hs-1.2_3", "list", "@:!*()"])
def test_ordinary_names_are_taken(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is empty"),
        ("a/b", "holds '/'"),
        ("a%b", "holds '%'"),
        ("a\nb", "invisible"),
        ("a\u200bb", "invisible"),
        (" a", "space"),
        ("..", "folder"),
        ("x" * 201, "longer"),
        ("\ud800", "invisible"),
    ],
)
def test_names_that_no_path_can_carry_are_refused(name: str, why: str) -> None:
    with pytest.raises(ConnectorNameError, match=why) as caught:
        check_name(name)
    assert caught.value.hint


@given(st.text(max_size=30))
def test_any_text_is_taken_or_refused_with_a_reason(name: str) -> None:
    with contextlib.suppress(ConnectorNameError):
        assert check_name(name) == name


def test_units_of_different_generations_differ() -> None:
    assert UnitId("a", 0, 1) != UnitId("a", 0, 2)
