"""Any format of Spark, by its name: the engine's Spark moves the rows, and tasks say which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    SinkConnector,
    SinkRecord,
    SinkTask,
    Size,
    SourceConnector,
    SourceTask,
    at_least,
    declare,
    each,
    key,
    one_of,
)
from headrace.errors import ProcessingError

# Config keys of both connectors, and how they become orders for the engine.

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
    """Return what the engine is to do: the values of all keys, and the format's options."""
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


# ``spark-sink``: topics go to where Spark writes.

METADATA = ("key", "topic", "broker", "queue", "offset", "timestamp", "headers")
"""Columns that may stand beside those of the value."""

_KEYS = FORMAT_KEYS | declare(
    key(
        "value.format",
        str,
        "What values are: json (an object, whose columns schema names), text, or bytes; the last"
        " two become one column, value.",
        default="json",
        valid=one_of("json", "text", "bytes"),
        group="Rows",
    ),
    key(
        "bad.values",
        str,
        "What to do with a value that is no JSON of its schema: fail, or null (all columns empty).",
        default="fail",
        valid=one_of("fail", "null"),
        group="Rows",
    ),
    key(
        "metadata.columns",
        list,
        f"Columns beside those of the value: {', '.join(METADATA)}.",
        default=[],
        valid=each(one_of(*METADATA)),
        group="Rows",
    ),
    key(
        "partition.by",
        list,
        "Columns by whose values files are put into folders.",
        default=[],
        group="Writing",
    ),
    key(
        "save.mode",
        str,
        "How Spark writes a batch of a format that is not one of files: append, overwrite, ignore"
        " or error.",
        default="append",
        valid=one_of("append", "overwrite", "ignore", "error"),
        group="Writing",
    ),
    key(
        "batch.folders",
        bool,
        "Whether each batch of files has a folder of its own, by which it is there once.",
        default=True,
        importance="high",
        group="Guarantee",
    ),
)


class SparkSinkTask(SinkTask):
    """Has nothing to put: the engine writes."""

    def start(self, config: Config) -> None:
        """Do nothing: the engine writes."""

    def in_engine(self, config: Config) -> Mapping[str, Any]:
        """Say how Spark writes."""
        files = config["format"] in FILE_FORMATS
        return order_of(config) | {"folders": files and config["batch.folders"]}

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Refuse: no record comes here."""
        message = f"{len(records)} records came to a task whose records Spark writes"
        raise ProcessingError(message, hint="Run it in a worker; the test kit has no Spark.")


class SparkSinkConnector(SinkConnector):
    """Takes topics to where Spark can write."""

    version: ClassVar[str] = "1.0"
    config: ClassVar[ConfigDeclaration] = _KEYS
    task: ClassVar[type[SinkTask]] = SparkSinkTask

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name what does not fit together."""
        yield from common_problems(config)
        if config["format"] == "binaryFile":
            yield ConfigProblem("format", "Spark reads binaryFile, and does not write it.")
        if config["value.format"] == "json" and not config["schema"]:
            message = "value.format=json needs schema: which columns the objects have."
            yield ConfigProblem("schema", message)


# ``spark-source``: what Spark reads comes into a topic.

_SOURCE_KEYS = FORMAT_KEYS | declare(
    key("topic", str, "The topic that the rows go to.", required=True, group="Topic"),
    key(
        "value.format",
        str,
        "What a row becomes: json (all columns), or text or bytes (one column, value.column).",
        default="json",
        valid=one_of("json", "text", "bytes"),
        group="Topic",
    ),
    key(
        "value.column",
        str,
        "The column that is the value, for value.format=text or bytes.",
        default="value",
        group="Topic",
    ),
    key("key.column", str, "The column whose text is the key.", group="Topic"),
    key(
        "timestamp.column",
        str,
        "The column that is the time of the message; without one, it is the time of the batch.",
        group="Topic",
    ),
    key(
        "read",
        str,
        "What is read: files (each once, as they come), column (rows in the order of"
        " increasing.column), or once (everything, in one batch); auto chooses files for formats"
        " of files, column where there is one, and once otherwise.",
        default="auto",
        valid=one_of("auto", "files", "column", "once"),
        group="Reading",
    ),
    key(
        "increasing.column",
        str,
        "A column that only rises from row to row as they are added.",
        group="Reading",
    ),
    key(
        "files",
        str,
        "Which files: a pattern of their names, such as *.csv.",
        default="*",
        group="Reading",
    ),
    key("recursive", bool, "Whether to look into folders below.", default=True, group="Reading"),
    key(
        "settle.ms",
        timedelta,
        "How long nobody must have written to a file before it counts as finished.",
        default=timedelta(seconds=1),
        group="Reading",
    ),
    key(
        "remember.ms",
        timedelta,
        "How long a file is remembered; one that is older than the newest by more is left out.",
        default=timedelta(days=7),
        valid=at_least(timedelta(minutes=1)),
        group="Reading",
    ),
    key(
        "batch.max.files",
        int,
        "Most files of a batch.",
        default=100,
        valid=at_least(1),
        group="Reading",
    ),
    key(
        "batch.max.bytes",
        Size,
        "Most bytes of the files of a batch; a file that is larger has one of its own.",
        default=256 << 20,
        group="Reading",
    ),
    key(
        "batch.max.rows",
        int,
        "Rows of a batch that reads by a column; more where several have the last one's value.",
        default=100_000,
        valid=at_least(1),
        group="Reading",
    ),
    key(
        "poll.interval.ms",
        timedelta,
        "How often to look for something new where there was nothing.",
        default=timedelta(seconds=5),
        group="Reading",
    ),
)


class SparkSourceTask(SourceTask):
    """Has nothing to poll: the engine reads."""

    def start(self, config: Config) -> None:
        """Do nothing: the engine reads."""

    def in_engine(self, config: Config) -> Mapping[str, Any]:
        """Say what Spark reads."""
        return {"read": _way(config)} | _without(order_of(config), "read")

    def poll(self) -> None:
        """Return nothing."""
        self.context.stopping.wait(0.5)


class SparkSourceConnector(SourceConnector):
    """Brings what Spark can read into a topic."""

    version: ClassVar[str] = "1.0"
    config: ClassVar[ConfigDeclaration] = _SOURCE_KEYS
    task: ClassVar[type[SourceTask]] = SparkSourceTask
    exactly_once: ClassVar[bool | None] = True

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name what does not fit together."""
        yield from common_problems(config)
        way = _way(config)
        if way == "column" and not config["increasing.column"]:
            message = "read=column needs increasing.column."
            yield ConfigProblem("increasing.column", message)
        if way == "files" and not config["path"]:
            yield ConfigProblem("path", "read=files needs a path.")
        if config["format"] == "binaryFile" and config["value.format"] == "json":
            message = "binaryFile has bytes: use value.format=bytes with value.column=content."
            yield ConfigProblem("value.format", message)

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Start one task: Spark shares the rows of a batch out by itself."""
        del max_tasks
        return [{}]


def _way(config: Config) -> str:
    given: str = config["read"]
    if given != "auto":
        return given
    if config["increasing.column"]:
        return "column"
    return "files" if config["format"] in FILE_FORMATS else "once"


def _without(order: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in order.items() if key != name}
