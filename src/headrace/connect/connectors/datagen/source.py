"""``datagen-source``: rows made up by a few words about each field."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    SourceBatch,
    SourceConnector,
    SourceTask,
    at_least,
    between,
    declare,
    key,
    one_of,
)
from headrace.connect.connectors.datagen._fields import Fields, FieldSpec, read_fields
from headrace.connect.connectors.datagen._templates import TEMPLATES
from headrace.connect.values import schema_of_arrow
from headrace.errors import ConnectorConfigError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DatagenSourceConnector", "DatagenSourceTask"]

_SHARE = "task.share"


class DatagenSourceTask(SourceTask):
    """Makes the rows of its partitions."""

    def start(self, config: Config) -> None:
        """Find out where each partition stands."""
        self._config = config
        self._fields = Fields(_fields(config), config["seed"])
        self._partitions = config["partitions"]
        number, _, tasks = config.texts.get(_SHARE, "0/1").partition("/")
        mine = range(int(number), self._partitions, int(tasks))
        self._next = {partition: self._committed(partition) for partition in mine}
        self._pace = _Pace(config["rate"] / int(tasks), config["batch.max.rows"])

    def poll(self) -> SourceBatch | None:
        """Make the next rows of the partition that is furthest behind."""
        left = {partition: self._left(partition) for partition in self._next}
        partition = min(self._next, key=lambda one: (not left[one], self._next[one]), default=None)
        if partition is None or not left[partition]:
            self.context.stopping.wait(0.5)
            return None
        rows = min(self._pace.allowed(), left[partition])
        if not rows:
            self.context.stopping.wait(self._pace.wait())
            return None
        self._pace.took(rows)
        return self._batch(partition, rows)

    def _committed(self, partition: int) -> int:
        offset = self.context.offsets.get({"datagen": partition})
        return int(offset["row"]) if offset else 0

    def _left(self, partition: int) -> int:
        most: int = self._config["batch.max.rows"]
        if (count := self._config["count"]) is None:
            return most
        rows = len(range(partition, count, self._partitions))
        return min(most, max(0, rows - self._next[partition]))

    def _batch(self, partition: int, rows: int) -> SourceBatch:
        first = self._next[partition]
        self._next[partition] = first + rows
        places = np.arange(first, first + rows, dtype=np.uint64)
        value = self._fields.rows(places * np.uint64(self._partitions) + np.uint64(partition))
        key = self._picked(value, "key.field")
        return SourceBatch(
            partition={"datagen": partition},
            offset={"row": first + rows},
            topic=self._config["topic"],
            value=value,
            key=key,
            timestamp_ms=_milliseconds(self._picked(value, "timestamp.field")),
            value_schema=schema_of_arrow(value.type),
            key_schema=None if key is None else schema_of_arrow(key.type),
        )

    def _picked(self, value: pa.StructArray, setting: str) -> pa.Array | None:
        name = self._config[setting]
        return None if name is None else value.field(name)


class _Pace:
    """How many rows may be made now."""

    def __init__(self, rate: float, most: int) -> None:
        self._rate = rate
        self._most = most
        self._since = time.monotonic()
        self._made = 0

    def allowed(self) -> int:
        """Rows that are due; all of a batch where there is no rate."""
        if not self._rate:
            return self._most
        due = (time.monotonic() - self._since) * self._rate - self._made
        return max(0, min(self._most, int(due)))

    def took(self, rows: int) -> None:
        self._made += rows

    def wait(self) -> float:
        """Seconds until the next row is due, a tenth at least so that rows come in batches."""
        due = self._since + (self._made + 1) / self._rate - time.monotonic()
        return min(1.0, max(0.1, due))


def _milliseconds(times: pa.Array | None) -> pa.Array | None:
    return None if times is None else times.cast("int64")


def _fields(config: Mapping[str, str | None]) -> dict[str, FieldSpec]:
    text = config["fields"] or TEMPLATES[config["template"] or "orders"]
    return read_fields(text)


class DatagenSourceConnector(SourceConnector):
    """Makes rows up, the same ones at the same places; see docs/connect-connectors.md."""

    version = "1.0"
    task = DatagenSourceTask
    exactly_once = True
    config: ClassVar[ConfigDeclaration] = declare(
        key(
            "topic",
            str,
            "The topic that the rows go to.",
            required=True,
            aliases=("kafka.topic",),
        ),
        key(
            "template",
            str,
            "Rows that people know from examples; orders where fields are not given either.",
            valid=one_of(*TEMPLATES),
            aliases=("quickstart",),
        ),
        key(
            "fields",
            str,
            'The fields as JSON, instead of a template: {"id": "sequence", "price": {"type": '
            '"float", "max": 10}}.',
        ),
        key("seed", int, "Another seed makes other rows.", default=0),
        key(
            "count",
            int,
            "How many rows there are in all; by default there is no end.",
            valid=at_least(0),
            aliases=("iterations",),
        ),
        key(
            "rate",
            float,
            "Rows per second of all tasks together; 0 makes them as fast as they are taken.",
            default=10.0,
            valid=at_least(0),
        ),
        key(
            "partitions",
            int,
            "Parts that tasks can share; a change makes other positions.",
            default=1,
            valid=between(1, 1024),
        ),
        key(
            "key.field",
            str,
            "The field that is the record's key too.",
            aliases=("schema.keyfield",),
        ),
        key("timestamp.field", str, "The field of type time that is the record's time."),
        key(
            "batch.max.rows",
            int,
            "Most rows of a poll.",
            default=10_000,
            valid=between(1, 1_000_000),
            importance="low",
        ),
    )

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Share the partitions out."""
        tasks = min(max_tasks, self.context.config["partitions"])
        return [{_SHARE: f"{number}/{tasks}"} for number in range(tasks)]

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name fields that cannot be, and keys that name no field."""
        if config["fields"] and config["template"]:
            yield ConfigProblem("template", "Give either template or fields.")
        try:
            fields = _fields(config)
        except ConnectorConfigError as error:
            yield ConfigProblem("fields", str(error))
            return
        for setting in ("key.field", "timestamp.field"):
            if (name := config[setting]) is not None and name not in fields:
                message = f"The key {setting} names {name!r}; the fields are {', '.join(fields)}."
                yield ConfigProblem(setting, message)
