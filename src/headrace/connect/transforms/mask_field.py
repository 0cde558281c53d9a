"""MaskField: writes nothing, or a fixed value, over fields that must not be seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from headrace.connect.config import Config, declare, key, not_empty
from headrace.connect.numbers import parse_float, single, whole
from headrace.connect.schema import BITS, Schema, Type
from headrace.connect.transforms._structure import REPLACE_NULLS, with_changed
from headrace.connect.transforms.base import SidedTransform, both_sides
from headrace.errors import TransformError

if TYPE_CHECKING:
    from headrace.connect.records import SinkRecord, SourceRecord


_NOTHING: Final[Mapping[type, Any]] = MappingProxyType(
    {
        bool: False,
        int: 0,
        float: 0.0,
        str: "",
        Decimal: Decimal(0),
        datetime: datetime(1970, 1, 1, tzinfo=UTC),
        date: date(1970, 1, 1),
        time: time(),
    }
)


class MaskField(SidedTransform):
    """Writes over fields: zero, an empty text or list, or ``replacement``.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> transform = MaskFieldValue()
    >>> transform.configure(MaskField.config.parse({"fields": "card", "replacement": "****"}))
    >>> record = SourceRecord(partition={}, offset={}, topic="t", value={"card": "4711"})
    >>> transform.apply(record).value
    {'card': '****'}
    """

    config = declare(
        key("fields", list[str], "The fields to mask.", required=True, valid=not_empty()),
        key(
            "replacement",
            str,
            "What to write, over numbers and texts that are not empty.",
            valid=not_empty(),
            importance="low",
        ),
        REPLACE_NULLS,
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        self._fields = frozenset(config["fields"])
        self._replacement: str | None = config["replacement"]
        self._replace_nulls = config["replace.null.with.default"]

    def change(
        self, record: SourceRecord | SinkRecord, schema: Schema | None, value: Any
    ) -> tuple[Schema | None, Any]:
        """Write over the fields."""
        del record
        return schema, with_changed(
            schema,
            value,
            self._fields,
            self._masked,
            purpose="MaskField",
            replace_nulls=self._replace_nulls,
        )

    def _masked(self, name: str, value: Any, schema: Schema | None) -> Any:
        if value is None:
            return None
        if self._replacement is not None:
            return self._replaced(name, value, schema)
        if isinstance(value, list):
            return []
        if isinstance(value, dict):
            if schema is None or schema.type is Type.MAP:
                return {}
        elif type(value) in _NOTHING:
            return _NOTHING[type(value)]
        raise _refused(name, value)

    def _replaced(self, name: str, value: Any, schema: Schema | None) -> Any:
        assert self._replacement is not None
        convert = _CONVERSIONS.get(type(value))
        if convert is None or value == "":
            raise _refused(name, value)
        try:
            return convert(self._replacement, None if schema is None else schema.type)
        except ValueError:
            raise TransformError(
                f"The replacement {self._replacement!r} does not fit the field {name}, "
                f"which is {schema or type(value).__name__}.",
                hint="Mask texts and numbers by transforms of their own.",
            ) from None


MaskFieldKey, MaskFieldValue = both_sides(MaskField)


def _decimal(text: str, _: Type | None = None) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(text) from None


def _whole(text: str, kind: Type | None) -> int:
    return whole(_decimal(text), BITS.get(kind or Type.INT64, 64))


def _float(text: str, kind: Type | None) -> float:
    value = parse_float(text)
    return single(value) if kind is Type.FLOAT32 else value


_CONVERSIONS: Final[Mapping[type, Callable[[str, Type | None], Any]]] = MappingProxyType(
    {int: _whole, float: _float, Decimal: _decimal, str: lambda text, _: text}
)


def _refused(name: str, value: Any) -> TransformError:
    return TransformError(
        f"MaskField cannot write over the field {name}, which is a {type(value).__name__}.",
        hint="Leave the field out with ReplaceField and exclude.",
    )
