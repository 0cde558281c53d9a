from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from headrace.connect import SchemaError
from headrace.connect.connectors.storage.sink import Folders, field_of, field_of_column

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def folders(given: Any, **more: Any) -> str | SchemaError:
    by_time = Folders(("time",), time_field="at", time_format="%Y-%m-%dT%H", **more)
    [found] = by_time.of_rows({"at": [given]}, [None])
    return found


@pytest.mark.parametrize(
    "given",
    [
        NOON,
        NOON.replace(tzinfo=None),
        NOON.timestamp() * 1000,
        int(NOON.timestamp() * 1000),
        "2026-03-01T12:00:00Z",
        "2026-03-01T13:00:00+01:00",
    ],
)
def test_time_has_many_forms(given: Any) -> None:
    assert folders(given) == "2026-03-01T12"


def test_zone_decides_on_the_day() -> None:
    assert folders(NOON, zone=ZoneInfo("Pacific/Auckland")) == "2026-03-02T01"
    assert folders(dt.date(2026, 3, 1)) == "2026-03-01T00"


@pytest.mark.parametrize("given", [None, True, "noon", {"a": 1}, 1e30])
def test_what_is_no_time_is_named(given: Any) -> None:
    found = folders(given)
    assert isinstance(found, SchemaError)
    assert "The field at is" in found.message


def test_fields_and_times_make_folders_in_the_order_that_was_asked_for() -> None:
    both = Folders(("field", "time"), ("a", "b c"), time_format="%Y")
    columns: dict[str, list[Any]] = {"a": [1, True], "b c": ["x=y", ""]}
    assert both.needed == ("a", "b c")
    assert next(iter(both.of_rows(columns, [0, None]))) == "a=1/b%20c=x%3Dy/1970"
    assert isinstance(list(both.of_rows(columns, [0, None]))[1], SchemaError)
    assert list(Folders(("field",), ("a",)).of_rows(columns, [0, 0])) == ["a=1", "a=true"]


def test_no_folders_need_nothing() -> None:
    assert Folders().needed == ()
    assert list(Folders().of_rows({}, [None])) == [""]


def test_missing_fields_of_values_and_of_columns_are_nothing() -> None:
    assert field_of({"a": None}, "a.b") is None
    assert list(field_of_column(pa.array([{"a": 1}]), "b")) == [None]
    assert list(field_of_column(pa.array(["text", "more"]), "b")) == [None, None]
    assert list(field_of_column(pa.array([{"a": 1}, None]), "a")) == [1, None]
