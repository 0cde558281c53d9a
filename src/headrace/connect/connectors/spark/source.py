"""``spark-source``: what Spark reads comes into a topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, ClassVar

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    Size,
    SourceConnector,
    SourceTask,
    at_least,
    declare,
    key,
    one_of,
)
from headrace.connect.connectors.spark.keys import (
    FILE_FORMATS,
    FORMAT_KEYS,
    common_problems,
    order_of,
)

__all__ = ["SparkSourceConnector", "SparkSourceTask"]

_KEYS = FORMAT_KEYS | declare(
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
        """Give nothing."""
        self.context.stopping.wait(0.5)


class SparkSourceConnector(SourceConnector):
    """Brings what Spark can read into a topic; see docs/connect-spark.md."""

    version: ClassVar[str] = "1.0"
    config: ClassVar[ConfigDeclaration] = _KEYS
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
