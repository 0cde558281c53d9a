"""``spark-sink``: topics go to where Spark writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    SinkConnector,
    SinkRecord,
    SinkTask,
    declare,
    each,
    key,
    one_of,
)
from headrace.connect.connectors.spark.keys import (
    FILE_FORMATS,
    FORMAT_KEYS,
    common_problems,
    order_of,
)
from headrace.errors import ProcessingError

__all__ = ["METADATA", "SparkSinkConnector", "SparkSinkTask"]

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
    """Takes topics to where Spark can write; see docs/connect-spark.md."""

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
