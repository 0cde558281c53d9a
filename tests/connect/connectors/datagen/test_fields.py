from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from headrace.connect.connectors.datagen import TEMPLATES, Fields, read_fields
from headrace.errors import ConnectorConfigError


def values(spec: str, count: int = 1000, seed: int = 1) -> list[Any]:
    fields = Fields(read_fields(f'{{"it": {spec}}}'), seed)
    made: list[Any] = fields.rows(np.arange(count, dtype=np.uint64)).field("it").to_pylist()
    return made


@pytest.mark.parametrize("template", sorted(TEMPLATES))
def test_rows_depend_on_seed_and_place_alone(template: str) -> None:
    def rows(first: int, count: int, seed: int = 1) -> list[Any]:
        places = np.arange(first, first + count, dtype=np.uint64)
        made: list[Any] = Fields(read_fields(TEMPLATES[template]), seed).rows(places).to_pylist()
        return made

    assert rows(0, 10) == rows(0, 3) + rows(3, 7)
    assert rows(0, 10) != rows(0, 10, seed=2)


def test_sequence_counts() -> None:
    assert values('{"type": "sequence", "start": 5, "step": 2}', 3) == [5, 7, 9]


def test_numbers_keep_their_bounds_and_reach_them() -> None:
    found = values('{"type": "int", "min": -2, "max": 2}')
    assert set(found) == {-2, -1, 0, 1, 2}
    floats = values('{"type": "float", "min": 1, "max": 2, "digits": 1}')
    assert min(floats) == 1.0
    assert max(floats) == 2.0


def test_choice_follows_its_weights() -> None:
    found = values('{"type": "choice", "values": ["a", "b", "c"], "weights": [8, 2, 0]}')
    assert 700 < found.count("a") < 900
    assert "c" not in found


def test_text_fills_its_pattern() -> None:
    found = values('{"type": "text", "pattern": "é-##?"}', 50)
    assert all(text[:2] == "é-" and text[2:4].isdigit() and text[4].islower() for text in found)
    assert len(set(found)) > 40


def test_uuids_are_of_version_four() -> None:
    found = {uuid.UUID(text) for text in values('"uuid"', 100)}
    assert len(found) == 100
    assert {one.version for one in found} == {4}


def test_times_go_on_step_by_step() -> None:
    spec = '{"type": "time", "start": "2026-01-01T00:00:00Z", "step_ms": 500}'
    assert values(spec, 3)[2] == datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_values_may_be_missing() -> None:
    assert 200 < values('{"type": "int", "null": 0.3}').count(None) < 400


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ('"integer"', "The field 'it' .* Invalid value 'integer'"),
        ('{"type": "int", "max": -1}', "max=-1 is below min=0"),
        ('{"type": "choice", "values": []}', "length >= 1"),
        ('{"type": "choice", "values": ["a"], "weights": [1, 2]}', "1 values and 2 weights"),
        ('{"type": "int", "mx": 1}', "unknown field `mx`"),
    ],
)
def test_field_that_cannot_be_is_named(spec: str, problem: str) -> None:
    with pytest.raises(ConnectorConfigError, match=problem):
        values(spec)
