"""The columns of the data source: those that a read gives and those that a write takes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["READ_COLUMNS", "WRITE_COLUMNS", "arrow_schema", "check_written", "read_schema"]

_HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", StringType())])
)
_BYTES: tuple[DataType, ...] = (BinaryType(), StringType())
_TEXT: tuple[DataType, ...] = (StringType(),)
_NUMBER: tuple[DataType, ...] = (IntegerType(), LongType())
_TIME: tuple[DataType, ...] = (TimestampType(),)

READ_COLUMNS: Mapping[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "broker": StringType(),
    "queue": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "bornTimestamp": TimestampType(),
    "tags": StringType(),
    "headers": _HEADERS,
}
"""Columns that a read gives, in order; ``headers`` on request."""

WRITE_COLUMNS: Mapping[str, tuple[DataType, ...]] = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": _TEXT,
    "queue": _NUMBER,
    "broker": _TEXT,
    "tags": _TEXT,
    "timestamp": _TIME,
    "bornTimestamp": _TIME,
    "headers": (_HEADERS,),
    "offset": _NUMBER,
}
"""Columns that a write takes, each with the types that it may have."""


def read_schema(*, headers: bool) -> StructType:
    """Give the schema of a read.

    Examples
    --------
    >>> read_schema(headers=False).fieldNames()[:3]
    ['key', 'value', 'topic']
    """
    names = [name for name in READ_COLUMNS if headers or name != "headers"]
    return StructType([StructField(name, READ_COLUMNS[name]) for name in names])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Check the columns that are to be read, and give their Arrow types.

    Raises
    ------
    ConfigurationError
        There is no such column, or it has another type.
    """
    for field in schema.fields:
        if field.name not in READ_COLUMNS:
            raise _unknown(field.name, READ_COLUMNS, "gives")
        _check_type(field, (READ_COLUMNS[field.name],))
    return to_arrow_schema(schema, timezone="UTC")


def check_written(schema: StructType, *, topic_given: bool) -> None:
    """Check the columns that are to be written.

    Raises
    ------
    ConfigurationError
        A column is missing or unknown, or has a type that cannot be written.
    """
    names = schema.fieldNames()
    for field in schema.fields:
        if field.name not in WRITE_COLUMNS:
            raise _unknown(field.name, WRITE_COLUMNS, "takes")
        _check_type(field, WRITE_COLUMNS[field.name])
    if "value" not in names:
        raise ConfigurationError(
            f"the rocketmq sink needs a column 'value', and there are {_listed(names)}",
            hint="name it: df.select(to_json(struct('*')).alias('value'))",
        )
    if "topic" not in names and not topic_given:
        raise ConfigurationError(
            "the rocketmq sink needs a topic: there is neither the option 'topic' nor a column"
            " 'topic'",
            hint='add .option("topic", "...")',
        )


def _check_type(field: StructField, allowed: tuple[DataType, ...]) -> None:
    if not any(_same_type(field.dataType, one) for one in allowed):
        wanted = " or ".join(one.simpleString() for one in allowed)
        raise ConfigurationError(
            f"column '{field.name}' has the type {field.dataType.simpleString()}, and must have"
            f" {wanted}",
            hint=f"cast it: col('{field.name}').cast('{allowed[0].simpleString()}')",
        )


def _same_type(one: DataType, other: DataType) -> bool:
    # Whether nulls are possible plays no part: a struct of literals says they are not.
    return one.simpleString() == other.simpleString()


def _unknown(name: str, known: Iterable[str], verb: str) -> ConfigurationError:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"did you mean '{close[0]}'?" if close else f"select of {_listed(names)}"
    return ConfigurationError(f"the rocketmq source {verb} no column '{name}'", hint=hint)


def _listed(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
