"""Made-up rows: the same row at the same place, however often and in whatever pieces it is made."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
from headrace.connect.connectors.sharing import TaskShare
from headrace.connect.schema import schema_of_arrow
from headrace.errors import ConnectorConfigError

# Chance that depends on the row's number alone.

Numbers: TypeAlias = npt.NDArray[np.uint64]
Floats: TypeAlias = npt.NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def column_seed(seed: int, name: str) -> int:
    """Return a seed for each column, so that each has chance of its own.

    >>> column_seed(1, "a") == column_seed(1, "b")
    False
    """
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def bits(rows: Numbers, seed: int) -> Numbers:
    """Return 64 even bits for each row number: SplitMix64 of seed and number.

    >>> rows = np.arange(4, dtype=np.uint64)
    >>> bool((bits(rows, 7)[2:] == bits(rows[2:], 7)).all())
    True
    """
    mixed = (rows + np.uint64(1)) * _GOLDEN + np.uint64(seed)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def shares(rows: Numbers, seed: int) -> Floats:
    """Return a number from 0 to below 1 for each row number."""
    return (bits(rows, seed) >> np.uint64(11)).astype(np.float64) / float(1 << 53)


# Fields of made-up rows: what each kind takes, and the column that it makes.

_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
_DIGITS = np.frombuffer(b"0123456789", np.uint8)
_LARGEST = 2**63 - 1
Probability: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]


class _Spec(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True
):
    #: How likely the value is missing.
    null: Probability = 0.0

    def column(self, rows: Numbers, seed: int) -> pa.Array:
        """Make the values of these rows."""
        raise NotImplementedError


class _Sequence(_Spec, frozen=True, tag="sequence"):
    start: int = 0
    step: int = 1

    def column(self, rows: Numbers, seed: int) -> pa.Array:
        del seed
        return pa.array(rows.astype(np.int64) * self.step + self.start)


class _Int(_Spec, frozen=True, tag="int"):
    min: int = 0
    max: int = _LARGEST - 1

    def __post_init__(self) -> None:
        if self.max < self.min:
            message = f"max={self.max} is below min={self.min}"
            raise ValueError(message)

    def column(self, rows: Numbers, seed: int) -> pa.Array:
        span = np.uint64(self.max - self.min + 1)
        return pa.array((bits(rows, seed) % span).astype(np.int64) + self.min)


class _Float(_Spec, frozen=True, tag="float"):
    min: float = 0.0
    max: float = 1.0
    digits: int | None = None

    def column(self, rows: Numbers, seed: int) -> pa.Array:
        values = shares(rows, seed) * (self.max - self.min) + self.min
        return pa.array(values if self.digits is None else values.round(self.digits))


class _Bool(_Spec, frozen=True, tag="bool"):
    true: Probability = 0.5

    def column(self, rows: Numbers, seed: int) -> pa.Array:
        return pa.array(shares(rows, seed) < self.true)


class _Choice(_Spec, frozen=True, tag="choice"):
    values: Annotated[list[str | int | float], msgspec.Meta(min_length=1)]
    weights: list[Annotated[float, msgspec.Meta(ge=0)]] | None = None

    def __post_init__(self) -> None:
        if self.weights is not None and len(self.weights) != len(self.values):
            message = f"there are {len(self.values)} values and {len(self.weights)} weights"
            raise ValueError(message)

    def column(self, rows: Numbers, seed: int) -> pa.Array:
        weights = np.asarray(self.weights or [1.0] * len(self.values))
        edges = np.cumsum(weights) / weights.sum()
        picks = np.searchsorted(edges, shares(rows, seed), side="right")
        return pa.array(self.values).take(pa.array(picks.clip(max=len(self.values) - 1)))


class _Text(_Spec, frozen=True, tag="text"):
    #: ``#`` stands for a digit, ``?`` for a letter, everything else for itself.
    pattern: str = "????????"

    def column(self, rows: Numbers, seed: int) -> pa.Array:
        pattern = self.pattern.encode()
        table = np.tile(np.frombuffer(pattern, np.uint8), (len(rows), 1))
        for place, mark in enumerate(pattern):
            if mark in b"#?":
                signs = _DIGITS if mark == ord("#") else _LETTERS
                drawn = bits(rows, column_seed(seed, str(place))) % np.uint64(len(signs))
                table[:, place] = signs[drawn.astype(np.intp)]
        edges = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(len(pattern))
        buffers = [None, pa.py_buffer(edges), pa.py_buffer(table.tobytes())]
        return pa.Array.from_buffers(pa.string(), len(rows), buffers)


class _Uuid(_Spec, frozen=True, tag="uuid"):
    def column(self, rows: Numbers, seed: int) -> pa.Array:
        high, low = bits(rows, seed), bits(rows, column_seed(seed, "low"))
        # Version 4, variant 1: the bits that say "by chance".
        high = high & np.uint64(0xFFFFFFFFFFFF0FFF) | np.uint64(0x4000)
        low = low & np.uint64(0x3FFFFFFFFFFFFFFF) | np.uint64(0x8000000000000000)
        texts = [f"{a:016x}{b:016x}" for a, b in zip(high.tolist(), low.tolist(), strict=True)]
        return pa.array([f"{t[:8]}-{t[8:12]}-{t[12:16]}-{t[16:20]}-{t[20:]}" for t in texts])


class _Time(_Spec, frozen=True, tag="time"):
    #: The first row's time; the clock's, for every row, where there is none.
    start: datetime | None = None
    step_ms: int = 1000

    def column(self, rows: Numbers, seed: int) -> pa.Array:
        del seed
        kind = pa.timestamp("ms", tz="UTC")
        if self.start is None:
            return pa.repeat(pa.scalar(datetime.now(UTC), kind), len(rows))
        first = self.start if self.start.tzinfo else self.start.replace(tzinfo=UTC)
        milliseconds = rows.astype(np.int64) * self.step_ms + round(first.timestamp() * 1000)
        return pa.array(milliseconds).cast(kind)


FieldSpec: TypeAlias = _Sequence | _Int | _Float | _Bool | _Choice | _Text | _Uuid | _Time
"""What a field holds."""

_PLAIN = ("sequence", "int", "float", "bool", "text", "uuid", "time")


class Fields:
    """All fields of a row.

    Examples
    --------
    >>> fields = read_fields('{"id": "sequence", "size": {"type": "int", "min": 1, "max": 9}}')
    >>> fields = Fields(fields, seed=1)
    >>> rows = np.arange(2, dtype=np.uint64)
    >>> fields.rows(rows).field("id").to_pylist()
    [0, 1]
    """

    def __init__(self, specs: Mapping[str, FieldSpec], seed: int) -> None:
        self._specs = {name: (spec, column_seed(seed, name)) for name, spec in specs.items()}

    def rows(self, numbers: Numbers) -> pa.StructArray:
        """Make rows by their numbers."""
        columns = [self._column(spec, numbers, seed) for spec, seed in self._specs.values()]
        return pa.StructArray.from_arrays(columns, list(self._specs))

    @staticmethod
    def _column(spec: FieldSpec, numbers: Numbers, seed: int) -> pa.Array:
        column = spec.column(numbers, seed)
        if not spec.null:
            return column
        there = shares(numbers, column_seed(seed, "null")) >= spec.null
        places = pa.array(np.arange(len(numbers)), mask=~there)
        return column.take(places)


def read_fields(text: str) -> dict[str, FieldSpec]:
    """Read fields as JSON has them: names to kinds, or to objects with a ``type``.

    Raises
    ------
    ConnectorConfigError
        Naming the field and what is wrong with it.
    """
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        message = f"The key fields is no JSON object: {error}."
        raise ConnectorConfigError(message, hint='Write {"id": "sequence"}.') from None
    return {name: _read_field(name, one) for name, one in found.items()}


def _read_field(name: str, spec: object) -> FieldSpec:
    try:
        made: FieldSpec = msgspec.convert(
            {"type": spec} if isinstance(spec, str) else spec, FieldSpec
        )
    except msgspec.ValidationError as error:
        message = f"The field {name!r} of the key fields cannot be: {error}."
        hint = (
            f"There are {', '.join(_PLAIN)} and choice;"
            " docs/guides/connect/connectors.md has their parts."
        )
        raise ConnectorConfigError(message, hint=hint) from None
    return made


# Rows that people know from examples.

TEMPLATES = {
    "users": """{
        "userid": {"type": "text", "pattern": "user-####"},
        "registertime": {"type": "time", "start": "2026-01-01T00:00:00Z", "step_ms": 60000},
        "regionid": {"type": "choice", "values": ["north", "east", "south", "west"]},
        "gender": {"type": "choice", "values": ["female", "male", "other"], "weights": [49, 49, 2]}
    }""",
    "pageviews": """{
        "viewtime": {"type": "time", "start": "2026-01-01T00:00:00Z", "step_ms": 100},
        "userid": {"type": "text", "pattern": "user-####"},
        "pageid": {"type": "text", "pattern": "page-##"}
    }""",
    "orders": """{
        "orderid": "sequence",
        "ordertime": {"type": "time", "start": "2026-01-01T00:00:00Z", "step_ms": 1000},
        "itemid": {"type": "text", "pattern": "item-###"},
        "orderunits": {"type": "int", "min": 1, "max": 10},
        "price": {"type": "float", "min": 0.5, "max": 500, "digits": 2},
        "zipcode": {"type": "text", "pattern": "#####"}
    }""",
    "stock-trades": """{
        "side": {"type": "choice", "values": ["BUY", "SELL"]},
        "symbol": {"type": "choice", "values": ["HDR", "RVR", "MILL", "WHL", "DAM"]},
        "quantity": {"type": "int", "min": 1, "max": 5000},
        "price": {"type": "float", "min": 1, "max": 1000, "digits": 2},
        "account": {"type": "text", "pattern": "??-####"}
    }""",
    "sensors": """{
        "sensor": {"type": "text", "pattern": "sensor-##"},
        "time": {"type": "time", "start": "2026-01-01T00:00:00Z", "step_ms": 10},
        "celsius": {"type": "float", "min": -20, "max": 45, "digits": 1, "null": 0.01},
        "battery": {"type": "float", "min": 2.7, "max": 4.2, "digits": 2}
    }""",
}
"""Names to fields."""


# ``datagen-source``: rows made up by a few words about each field.


class DatagenSourceTask(SourceTask):
    """Makes the rows of its partitions."""

    def start(self, config: Config) -> None:
        """Find out where each partition stands."""
        self._config = config
        self._fields = Fields(_fields(config), config["seed"])
        self._partitions = config["partitions"]
        share = TaskShare.of(config)
        mine = range(share.number, self._partitions, share.tasks)
        self._next = {partition: self._committed(partition) for partition in mine}
        self._pace = _Pace(config["rate"] / share.tasks, config["batch.max.rows"])

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
    """Makes rows up, the same ones at the same places."""

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
        return TaskShare.configs(min(max_tasks, self.context.config["partitions"]))

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
