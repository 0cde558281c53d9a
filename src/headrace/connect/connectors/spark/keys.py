"""Config keys of both connectors, and how they become orders for the engine."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from headrace.connect import Config, ConfigProblem, declare, key

__all__ = ["FILE_FORMATS", "FORMAT_KEYS", "common_problems", "order_of"]

#: Formats of whole files in folders.
FILE_FORMATS = frozenset({"avro", "binaryFile", "csv", "json", "orc", "parquet", "text", "xml"})

FORMAT_KEYS = declare(
    key(
        "format",
        str,
        "The format, by the name that Spark knows it by: parquet, csv, json, jdbc, delta ...;"
        " formats that do not come with Spark need their jars in the worker's Spark config.",
        required=True,
        group="Format",
    ),
    key(
        "path",
        str,
        "What Spark's load or save is given: a folder or a pattern, on any file system that Spark"
        " reaches; some formats need none.",
        group="Format",
    ),
    key(
        "schema",
        str,
        "The columns, as in create table: id long, name string, at timestamp.",
        group="Format",
    ),
)

#: What the engine does not do with rows that Spark moves.
_NOT_HERE = ("transforms", "key.converter", "value.converter", "header.converter")
_OPTION = "option."


def order_of(config: Config) -> dict[str, Any]:
    """Give what the engine is to do: the values of all keys, and the format's options."""
    order: dict[str, Any] = {
        name: value.total_seconds() if isinstance(value, timedelta) else value
        for name, value in config.items()
        if isinstance(value, str | int | float | bool | list | timedelta)
    }
    return order | {"options": config.section(_OPTION)}


def common_problems(config: Config) -> Iterator[ConfigProblem]:
    """Name what is wrong with keys that both have."""
    for name in _NOT_HERE:
        if config.texts.get(name):
            message = f"Rows that Spark moves pass no {name}: say what they become by this format."
            yield ConfigProblem(name, message)
    if config["format"] in FILE_FORMATS and not config["path"]:
        yield ConfigProblem("path", f"The format {config['format']} needs a path.")
