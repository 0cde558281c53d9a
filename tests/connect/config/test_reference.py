"""The page of all keys is made from their declarations."""

from __future__ import annotations

from pathlib import Path

from headrace.connect.config.reference import reference_page

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "connectors.md"


def test_page_is_up_to_date() -> None:
    made = reference_page()
    assert PAGE.read_text() == made, (
        "run: python -m headrace.connect.config.reference > docs/reference/connectors.md"
    )
