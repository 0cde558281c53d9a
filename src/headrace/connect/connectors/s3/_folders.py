"""The folders that rows belong to, by their fields and times."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connect import Config, SchemaError

__all__ = ["Folders", "field_of", "field_of_column"]

#: What Hive, Spark and the like call the folder of rows that lack the field.
_NOTHING = "__HIVE_DEFAULT_PARTITION__"
_EARLIEST = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Folders:
    """Tells the folder of each row.

    Examples
    --------
    >>> folders = Folders(("field",), ("land",))
    >>> list(folders.of_rows({"land": ["de", None, "a/b"]}, [0, 0, 0]))
    ['land=de', 'land=__HIVE_DEFAULT_PARTITION__', 'land=a%2Fb']
    >>> list(Folders(("time",)).of_rows({}, [1_800_000_000_000]))
    ['year=2027/month=01/day=15/hour=08']
    """

    #: ``field`` and ``time``, in the order of their folders.
    by: tuple[str, ...] = ()
    #: The fields that have a folder each.
    fields: tuple[str, ...] = ()
    #: The field with the time; the record's own time without it.
    time_field: str | None = None
    time_format: str = "year=%Y/month=%m/day=%d/hour=%H"
    zone: dt.tzinfo = dt.UTC

    @classmethod
    def of(cls, config: Config) -> Folders:
        """Read a sink's config."""
        return cls(
            tuple(config["partition.by"]),
            tuple(config["partition.fields"]),
            config["partition.time.field"],
            config["partition.time.format"],
            ZoneInfo(config["partition.time.zone"]),
        )

    @property
    def needed(self) -> tuple[str, ...]:
        """The fields that decide."""
        fields = self.fields if "field" in self.by else ()
        return (*fields, self.time_field) if "time" in self.by and self.time_field else fields

    def of_rows(
        self, columns: Mapping[str, Sequence[Any]], times: Sequence[int | None]
    ) -> Iterator[str | SchemaError]:
        """Give the folder of each row, or what is wrong with the row.

        Parameters
        ----------
        columns
            The values of the fields that are needed.
        times
            The records' times in milliseconds since 1970.
        """
        for row, time in enumerate(times):
            try:
                yield "/".join(
                    part for by in self.by for part in self._parts(by, columns, row, time)
                )
            except SchemaError as error:
                yield error

    def _parts(
        self, by: str, columns: Mapping[str, Sequence[Any]], row: int, time: int | None
    ) -> Iterator[str]:
        if by == "field":
            for field in self.fields:
                yield f"{quote(field, safe='')}={_name(columns[field][row])}"
        else:
            given = columns[self.time_field][row] if self.time_field else time
            yield self._moment(given).strftime(self.time_format)

    def _moment(self, given: Any) -> dt.datetime:
        try:
            return _read_time(given).astimezone(self.zone)
        except (ValueError, TypeError, OverflowError) as error:
            where = f"The field {self.time_field}" if self.time_field else "The record's time"
            message = f"{where} is {given!r:.80}, which is no time: {error}"
            hint = "Give milliseconds since 1970, ISO 8601 or a timestamp, or drop such records."
            raise SchemaError(message, hint=hint) from error


def _read_time(given: Any) -> dt.datetime:
    match given:
        case dt.datetime():
            return given if given.tzinfo else given.replace(tzinfo=dt.UTC)
        case dt.date():
            return dt.datetime(given.year, given.month, given.day, tzinfo=dt.UTC)
        case str():
            return _read_time(dt.datetime.fromisoformat(given))
        case int() | float() if not isinstance(given, bool):
            return _EARLIEST + dt.timedelta(milliseconds=given)
    message = f"{type(given).__name__} is no kind of time"
    raise TypeError(message)


def _name(value: Any) -> str:
    if value is None or value == "":
        return _NOTHING
    text = value.isoformat() if isinstance(value, dt.date) else str(value)
    return quote(text.lower() if isinstance(value, bool) else text, safe="")


def field_of(value: Any, name: str) -> Any:
    """Give a field of a value; dots lead into structs within, and what is missing is ``None``.

    >>> field_of({"a": {"b": 7}}, "a.b"), field_of("text", "a")
    (7, None)
    """
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def field_of_column(column: pa.Array, name: str) -> Sequence[Any]:
    """Give a field of every value of a column.

    >>> field_of_column(pa.array([{"a": {"b": 7}}, None]), "a.b")
    [7, None]
    """
    try:
        found: list[Any] = pc.struct_field(column, name.split(".")).to_pylist()
    except (pa.ArrowException, TypeError, KeyError):  # there is no such field, or no struct
        return [None] * len(column)
    return found
