"""Serdes of structured values: JSON, plain data, typed JSON."""

from __future__ import annotations

import dataclasses
import inspect
import keyword
import sys
import typing
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.schema import Schema, has_fields
from headrace.encoding import decode, encode_canonical, encode_exact, encode_exact_many
from headrace.errors import SerializationError
from headrace.keys import decode_keys, encode_keys
from headrace.serdes.base import Serde, wrong_type

if TYPE_CHECKING:
    import pydantic


T = TypeVar("T")
V = TypeVar("V")
M = TypeVar("M", bound="pydantic.BaseModel")

_CACHE = "__msgspec_cache__"


class JsonSerde(Serde[Any]):
    """JSON: integers of any size stay exact; NaN and infinities become null, as JSON has none.

    A value that JSON has no type for is written as the nearest one: tuples as arrays, dates and
    decimals as strings, dataclasses as objects.  It reads back as that nearest type; called with a
    type, as in ``serdes.json(Order)``, the serde returns one that reads back that type.
    """

    name: ClassVar[str] = "json"
    is_text: ClassVar[bool] = True

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder()

    def __reduce__(self) -> tuple[type[JsonSerde], tuple[()]]:
        return JsonSerde, ()

    def __call__(self, type: type[T]) -> Serde[T]:  # noqa: A002 - the name that callers read
        """Make a serde of one type; see :func:`json_of`."""
        return json_of(type)

    def serialize(self, value: Any) -> bytes:
        return self._encoder.encode(value)

    def deserialize(self, data: bytes) -> Any:
        return self._decoder.decode(data)

    def serialize_many(self, values: list[Any]) -> pa.BinaryArray:
        if set(map(type, values)) == {int}:
            try:
                numbers = pa.array(np.array(values, np.int64))
                return numbers.cast(pa.string()).cast(pa.binary())
            except OverflowError:
                pass
        return pa.array(list(map(self._encoder.encode, values)), pa.binary())

    def deserialize_many(self, data: pa.BinaryArray) -> list[Any]:
        return list(map(self._decoder.decode, data.to_pylist()))


class TypedJsonSerde(Serde[T]):
    """JSON of one type: a dataclass, named tuple, TypedDict, Struct, enum, or a container of such.

    Parameters
    ----------
    type
        The type; values that are read and the class of values that are written must match it.
    """

    is_text: ClassVar[bool] = True

    def __init__(self, type: type[T]) -> None:  # noqa: A002 - the name that callers read
        self._type = type
        #: The class of values, by which a wrong one is refused before it lies in a store.
        self._class: Any = type if has_fields(type) and not typing.is_typeddict(type) else object
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(type)
        #: Reads rows for columns; made at the first use.
        self._rows: tuple[Schema, msgspec.json.Decoder[Any]] | None = None
        _forget_caches(type)

    def __reduce__(self) -> tuple[Any, ...]:
        hints = {kind: known for kind in classes_of(self._type) if (known := _hints(kind))}
        return _rebuild, (self._type, hints, getattr(self._type, "__struct_fields__", None))

    def __repr__(self) -> str:
        return f"json_of({getattr(self._type, '__qualname__', self._type)})"

    @property
    def hint(self) -> type[T]:
        return self._type

    def serialize(self, value: T) -> bytes:
        if not isinstance(value, self._class):
            raise wrong_type(self, value, self._class.__qualname__)
        return self._encoder.encode(value)

    def deserialize(self, data: bytes) -> T:
        return self._decoder.decode(data)

    def deserialize_many(self, data: pa.BinaryArray) -> list[T]:
        return list(map(self._decoder.decode, data.to_pylist()))

    def read_columns(self, data: pa.BinaryArray) -> pa.RecordBatch:
        schema = self.schema
        assert schema is not None
        if self._rows is None:
            twin = _twin(self._type)
            if twin is None:
                self._rows = schema, self._decoder
            else:
                by_name = dataclasses.replace(schema, kind="attributes")
                self._rows = by_name, msgspec.json.Decoder(twin)
        columns, decoder = self._rows
        return columns.batch(list(map(decoder.decode, data.to_pylist())))


def _twin(hint: Any) -> type[msgspec.Struct] | None:
    """Make a Struct that reads what a dataclass or a TypedDict reads, several times as fast.

    The result is None where these do more than hold their fields.
    """
    fields = _fields_of_typed_dict(hint) if typing.is_typeddict(hint) else _fields_of_class(hint)
    if fields is None:
        return None
    return msgspec.defstruct(f"{hint.__name__}Row", fields, kw_only=True, gc=False)


def _fields_of_typed_dict(hint: Any) -> list[Any] | None:
    hints = _hints(hint)
    wrapped = any(hasattr(kind, "__origin__") for kind in hints.values())
    named = all(name.isidentifier() and not keyword.iskeyword(name) for name in hints)
    if wrapped or not named or hint.__required_keys__ != set(hints):
        return None
    return list(hints.items())


def _fields_of_class(hint: Any) -> list[Any] | None:
    if not dataclasses.is_dataclass(hint) or hasattr(hint, "__post_init__"):
        return None
    fields: list[Any] = []
    hints = _hints(hint)  # type: ignore[arg-type]
    for one in dataclasses.fields(hint):
        if not one.init or one.name not in hints:
            return None
        if one.default is not dataclasses.MISSING:
            fields.append((one.name, hints[one.name], msgspec.field(default=one.default)))
        elif one.default_factory is not dataclasses.MISSING:
            make = msgspec.field(default_factory=one.default_factory)
            fields.append((one.name, hints[one.name], make))
        else:
            fields.append((one.name, hints[one.name]))
    return fields


class PydanticSerde(Serde[M]):
    """JSON of one pydantic model, which checks what is read.

    Parameters
    ----------
    model
        The model.
    """

    is_text: ClassVar[bool] = True

    def __init__(self, model: type[M]) -> None:
        self._model = model

    def __reduce__(self) -> tuple[Any, ...]:
        return PydanticSerde, (self._model,)

    def __repr__(self) -> str:
        return f"json_of({self._model.__qualname__})"

    @property
    def hint(self) -> type[M]:
        return self._model

    def serialize(self, value: M) -> bytes:
        if not isinstance(value, self._model):
            raise wrong_type(self, value, self._model.__qualname__)
        return value.model_dump_json(by_alias=True).encode()

    def deserialize(self, data: bytes) -> M:
        return self._model.model_validate_json(data)


def classes_of(hint: Any) -> Iterator[type]:
    """Yield the classes that a type is made of."""
    pending, seen = [hint], set[int]()
    while pending:
        kind = pending.pop()
        if id(kind) in seen:
            continue
        seen.add(id(kind))
        pending += [*typing.get_args(kind), typing.get_origin(kind)]
        if isinstance(kind, type) and not typing.get_args(kind):
            pending += _hints(kind).values()
            yield kind


def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001 - annotations are the user's code: any may fail
        return {}


def _forget_caches(hint: Any) -> None:
    """Drop what msgspec keeps on classes: it cannot be pickled, and this decoder exists now."""
    for kind in classes_of(hint):
        if _CACHE in vars(kind):
            delattr(kind, _CACHE)


def _rebuild(
    hint: Any, hints: Mapping[type, dict[str, Any]], fields: tuple[str, ...] | None
) -> TypedJsonSerde[Any]:
    if getattr(hint, "__struct_fields__", None) != fields:
        raise SerializationError(
            f"{hint.__qualname__} is a msgspec Struct of the program itself, and lost its fields on"
            " the way to a worker",
            hint="make it a dataclass, or define it in an installed package",
        )
    for kind, known in hints.items():
        # A class that came without its module cannot look up the names in its annotations.
        if _hints(kind) != known:
            kind.__annotations__ = known
    return TypedJsonSerde(hint)


def json_of(type: type[T]) -> Serde[T]:  # noqa: A002 - the name that callers read
    r"""Make a serde that writes values of one type as JSON and checks what it reads.

    Parameters
    ----------
    type
        A dataclass, named tuple, TypedDict, msgspec Struct, pydantic model, enum, or a container
        of such.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Order:
    ...     item: str
    ...     price: int
    >>> json_of(Order).serialize(Order("tea", 3))
    b'{"item":"tea","price":3}'
    >>> json_of(Order).deserialize(b'{"item":"tea","price":3}')
    Order(item='tea', price=3)
    """
    given: Any = type
    # A program with a model has imported pydantic; no other program waits for that.
    if inspect.isclass(given) and "pydantic" in sys.modules:
        from pydantic import BaseModel

        if issubclass(given, BaseModel):
            model: Serde[Any] = PydanticSerde(given)
            return model
    return TypedJsonSerde(type)


class PlainSerde(Serde[Any]):
    """Plain data as it is, types included: the default where nothing else is known.

    None, bool, int, float, str, bytes, Decimal, date, time, datetime, timedelta, UUID, and tuples,
    lists, dicts and sets of these, in the exact form of :mod:`headrace.encoding`.
    """

    name: ClassVar[str] = "plain"

    def serialize(self, value: Any) -> bytes:
        return encode_exact(value)

    def deserialize(self, data: bytes) -> Any:
        return decode(data)

    def serialize_many(self, values: list[Any]) -> pa.BinaryArray:
        # Both forms write text alike, and keys know how to write many at once.
        texts = set(map(type, values)) == {str}
        encoded = encode_keys(values) if texts else encode_exact_many(values)
        return pa.array(encoded, pa.binary())

    def deserialize_many(self, data: pa.BinaryArray) -> list[Any]:
        return decode_keys(data.to_pylist())


class KeySerde(Serde[Any]):
    """Keys: plain data in the canonical form (see :mod:`headrace.keys`)."""

    name: ClassVar[str] = "key"

    def serialize(self, value: Any) -> bytes:
        return encode_canonical(value)

    def deserialize(self, data: bytes) -> Any:
        return decode(data)

    def serialize_many(self, values: list[Any]) -> pa.BinaryArray:
        return pa.array(encode_keys(values), pa.binary())

    def deserialize_many(self, data: pa.BinaryArray) -> list[Any]:
        return decode_keys(data.to_pylist())


class NothingSerde(Serde[Any]):
    """No bytes at all, read as None: for values that nobody looks at."""

    name: ClassVar[str] = "nothing"

    def serialize(self, value: Any) -> bytes:  # noqa: ARG002
        return b""

    def deserialize(self, data: bytes) -> Any:  # noqa: ARG002
        return None

    def serialize_many(self, values: list[Any]) -> pa.BinaryArray:
        return pa.array([b""]).take(pa.array(np.zeros(len(values), np.int64)))

    def deserialize_many(self, data: pa.BinaryArray) -> list[Any]:
        return [None] * len(data)


# Values that may be missing: None in memory, an empty body in a message.

_PRESENT = b"+"


class OptionalSerde(Serde[V | None]):
    """Another serde's form, and no bytes at all for None."""

    def __init__(self, inner: Serde[V]) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"optional({self._inner!r})"

    @property
    def hint(self) -> Any:
        return self._inner.hint if self._inner.hint is Any else self._inner.hint | None

    def serialize(self, value: V | None) -> bytes:
        return b"" if value is None else self._inner.serialize(value)

    def deserialize(self, data: bytes) -> V | None:
        return self._inner.deserialize(data) if data else None


def optional(serde: Serde[V]) -> Serde[V | None]:
    r"""Make a serde that writes None as an empty body, which deletes in a table.

    An empty body reads as None, also where ``serde`` would read a value of its own.

    Parameters
    ----------
    serde
        Writes all other values.

    Examples
    --------
    >>> from headrace import serdes
    >>> serdes.optional(serdes.json).serialize(None), serdes.json.serialize(None)
    (b'', b'null')
    """
    return OptionalSerde(serde)


class NullableSerde(Serde[V | None]):
    """Another serde's form behind a byte, and no bytes at all for None; used inside jobs only."""

    def __init__(self, inner: Serde[V]) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{self.inner!r} or none"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NullableSerde) and self.inner == other.inner

    def __hash__(self) -> int:
        return hash((NullableSerde, self.inner))

    def serialize(self, value: V | None) -> bytes:
        return b"" if value is None else _PRESENT + self.inner.serialize(value)

    def deserialize(self, data: bytes) -> V | None:
        return self.inner.deserialize(data[1:]) if data else None

    def serialize_many(self, values: list[V | None]) -> pa.BinaryArray:
        present = [value for value in values if value is not None]
        written = self.inner.serialize_many(present)
        marked = pc.binary_join_element_wise(pa.scalar(_PRESENT, pa.binary()), written, b"")
        if len(present) == len(values):
            return marked
        missing = np.array([value is None for value in values])
        places = np.cumsum(~missing) - 1
        return marked.take(pa.array(places, mask=missing)).fill_null(b"")

    def deserialize_many(self, data: pa.BinaryArray) -> list[V | None]:
        missing = pc.equal(pc.binary_length(data), 0).to_numpy(zero_copy_only=False)
        # Not binary_slice: of values of one byte it makes buffers of negative sizes.
        bodies = pc.binary_replace_slice(data.filter(pa.array(~missing)), 0, 1, b"")
        values = iter(self.inner.deserialize_many(bodies))
        return [None if gone else next(values) for gone in missing.tolist()]


def nullable(serde: Serde[Any]) -> Serde[Any]:
    """Make a serde that can carry None besides what another one can.

    >>> from headrace import serdes
    >>> array = nullable(serdes.string).serialize_many(["", None, "a"])
    >>> nullable(serdes.string).deserialize_many(array)
    ['', None, 'a']
    """
    return serde if isinstance(serde, NullableSerde) else NullableSerde(serde)
