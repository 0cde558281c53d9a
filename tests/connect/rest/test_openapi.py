"""The page of all operations is made from their description."""

from __future__ import annotations

from pathlib import Path

from headrace.connect.rest import OPERATIONS, description, page

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "connect-openapi.md"


def test_page_is_up_to_date() -> None:
    made = page(description(OPERATIONS))
    assert PAGE.read_text() == made, (
        "run: python -m headrace.connect.rest > docs/reference/connect-openapi.md"
    )


def test_page_tells_what_an_operation_takes_and_answers() -> None:
    (told,) = [
        part
        for part in page(description(OPERATIONS)).split("\n### ")
        if part.startswith("`PATCH /connectors/{connector}/offsets`")
    ]
    assert "| `offsets` | list of object |" in told
    assert "| 409 | Conflict | [Error](#error) |" in told
