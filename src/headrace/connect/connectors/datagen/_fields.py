"""Fields of made-up rows: what each kind takes, and the column that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from headrace.connect.connectors.datagen._chance import Numbers, bits, column_seed, shares
from headrace.errors import ConnectorConfigError

__all__ = ["FieldSpec", "Fields", "read_fields"]

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
            f"There are {', '.join(_PLAIN)} and choice; docs/connect-connectors.md has their parts."
        )
        raise ConnectorConfigError(message, hint=hint) from None
    return made
