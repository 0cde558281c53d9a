"""The page of what faults cost has what the table of faults has, and what was measured."""

from __future__ import annotations

from pathlib import Path

from tests.connect.data.faults import FAULTS, Cell, page, read
from tests.connect.data.flows import CONNECTORS
from tests.connect.data.test_healing import doubled, missing

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "connect-faults.md"
CELL = Cell(rows_in=5, rows_out=6, doubled=2, lost=1, moves_after=1.0, states=["RUNNING"])


def test_page_has_a_row_for_each_connector_and_a_column_for_each_fault() -> None:
    table = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if "|" in line]
    columns, _, *rows = table[: len(CONNECTORS) + 2]
    assert columns == ["connector", *(fault.title for fault in FAULTS)]
    assert [row[0].strip("`") for row in rows] == list(CONNECTORS)
    assert {len(row) for row in rows} == {len(columns)}


def test_page_is_what_was_measured() -> None:
    assert PAGE.read_text() == page(read()), (
        "run: python -m tests.connect.data.faults > docs/explanation/connect-faults.md"
    )


def test_cells_tell_what_was_lost_and_what_was_not_run() -> None:
    (over,) = (fault for fault in FAULTS if fault.name == "peer fails over")
    made = page({over.name: dict.fromkeys(over.connectors, CELL)})
    first, second = (line for line in made.splitlines() if line.startswith("| `pg-sink` |"))
    place = 1 + FAULTS.index(over)
    cells = first.strip("| ").split(" | ")
    assert cells.pop(place) == "1.0 s, 1 lost, 2 doubled"
    assert set(cells[1:]) == {"not run yet"}
    assert second == "| `pg-sink` | 5 | 6 | 2 | 1 | 1.0 s | RUNNING |"
    (other,) = (line for line in made.splitlines() if line.startswith("| `files-sink` |"))
    assert other.strip("| ").split(" | ")[place] == "not tried"


def test_rows_are_counted_by_what_was_given() -> None:
    given, arrived = [1, 2, 2, 3, 9], [1, 1, 2, 2, 4, 4, 9]
    assert missing(given, arrived, range(5)) == 1
    # What its origin has forgotten, 4, was given once.
    assert doubled(given, arrived, range(5)) == 2
