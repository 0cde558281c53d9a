"""Whole messages: how a source reads key and value, how a sink writes them."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar, overload

import pyarrow as pa

from headrace.errors import DeserializationError
from headrace.keys import EXACT_KEY, KEYS, key_from_properties, keys_from_columns
from headrace.serdes.base import Serde
from headrace.serdes.inference import document_serde_for, result_hint, type_arguments

K = TypeVar("K")
V = TypeVar("V")

PropertyColumns = Callable[[str], pa.BinaryArray]
"""A function that returns a property's column: a value per message, null where it is absent."""


class Keyed(NamedTuple, Generic[K, V]):
    """A key with a value, as a deserializer that gives keys returns it.

    Examples
    --------
    >>> def read_reading(body: bytes) -> Keyed[str, float]:
    ...     sensor, degrees = body.decode().split("=")
    ...     return Keyed(sensor, float(degrees))
    >>> read_reading(b"kitchen=21.5")
    Keyed(key='kitchen', value=21.5)
    """

    key: K
    value: V


class Deserializer(ABC, Generic[K, V]):
    """Reads records from messages.

    Sources take serdes and plain callables too; this class is for one that looks at properties.
    """

    #: Types of key and value where they are known.
    key_hint: Any = Any
    value_hint: Any = Any
    #: Writes the values between stages, None where it follows from their type.
    value_serde: Serde[Any] | None = None

    def as_columns(self) -> Deserializer[K, V] | None:
        """Return a deserializer of values as columns; None where they have no schema."""
        return None

    @abstractmethod
    def deserialize(self, body: bytes, properties: Mapping[str, str]) -> Keyed[K, V]:
        """Read one message."""

    def deserialize_many(
        self, bodies: pa.BinaryArray, properties: PropertyColumns
    ) -> tuple[list[K] | None, list[V]]:
        """Read many messages: keys, or None when no message has one, and values.

        Any exception means that some message is bad; the caller finds it with
        :meth:`deserialize`.  A subclass that reads other properties than the key overrides this.
        """
        texts = [properties(name).to_pylist() for name in (KEYS, EXACT_KEY)]
        records = [
            self.deserialize(
                body,
                {
                    name: value.decode()
                    for name, value in ((KEYS, text), (EXACT_KEY, exact))
                    if value is not None
                },
            )
            for body, text, exact in zip(bodies.to_pylist(), *texts, strict=True)
        ]
        return [record.key for record in records], [record.value for record in records]


class _SerdeDeserializer(Deserializer[None, V]):
    """Reads the body by a serde, and no key."""

    key_hint = type(None)

    def __init__(self, serde: Serde[V]) -> None:
        self._serde = serde
        self.value_hint = serde.hint
        self.value_serde = None if serde.hint is Any else serde

    def __repr__(self) -> str:
        return repr(self._serde)

    def as_columns(self) -> Deserializer[None, V] | None:
        return None if self._serde.schema is None else _ColumnsDeserializer(self._serde)

    def deserialize(self, body: bytes, properties: Mapping[str, str]) -> Keyed[None, V]:  # noqa: ARG002
        try:
            return Keyed(None, self._serde.deserialize(body))
        except Exception as error:
            if body:
                raise
            raise DeserializationError(
                f"an empty body, a tombstone, is no value of {self._serde!r}: {error}",
                hint=f"serdes.optional(...) around {self._serde!r} reads it as None",
            ) from error

    def deserialize_many(
        self,
        bodies: pa.BinaryArray,
        properties: PropertyColumns,  # noqa: ARG002
    ) -> tuple[list[None] | None, list[V]]:
        return None, self._serde.deserialize_many(bodies)


class _ColumnsDeserializer(_SerdeDeserializer[V]):
    """Reads the body by a serde, as columns that become values where somebody looks at them."""

    def deserialize_many(
        self,
        bodies: pa.BinaryArray,
        properties: PropertyColumns,  # noqa: ARG002
    ) -> tuple[list[None] | None, list[V]]:
        from headrace.columns import ColumnValues

        batch = self._serde.read_columns(bodies)
        values: Any = ColumnValues(batch, origin=(bodies, self._serde.deserialize_many))
        return None, values


class _FunctionDeserializer(Deserializer[Any, Any]):
    """Reads the body by a callable, which may return :class:`Keyed`."""

    def __init__(self, function: Callable[[bytes], Any], hint: Any) -> None:
        self._function = function
        self.key_hint, self.value_hint = Any, hint
        keyed = type_arguments(hint, Keyed)
        if keyed is not None:
            self.key_hint, self.value_hint = keyed if len(keyed) == 2 else (Any, Any)
        elif hint is not Any:
            self.key_hint = type(None)

    def __repr__(self) -> str:
        return callable_name(self._function)

    def deserialize(self, body: bytes, properties: Mapping[str, str]) -> Keyed[Any, Any]:  # noqa: ARG002
        value = self._function(body)
        return value if type(value) is Keyed else Keyed(None, value)

    def deserialize_many(
        self,
        bodies: pa.BinaryArray,
        properties: PropertyColumns,  # noqa: ARG002
    ) -> tuple[list[Any] | None, list[Any]]:
        values = list(map(self._function, bodies.to_pylist()))
        if Keyed not in set(map(type, values)):
            return None, values
        records = [value if type(value) is Keyed else Keyed(None, value) for value in values]
        return [record.key for record in records], [record.value for record in records]


class KeyDeserializer(Deserializer[K, V]):
    """Reads the value by another deserializer, the key from the message's properties."""

    def __init__(self, values: Deserializer[Any, V], key_type: type[K]) -> None:
        self._values = values
        self._type = key_type
        self.key_hint = key_type
        self.value_hint = values.value_hint
        self.value_serde = values.value_serde

    def as_columns(self) -> Deserializer[K, V] | None:
        values = self._values.as_columns()
        return None if values is None else KeyDeserializer(values, self._type)

    def __repr__(self) -> str:
        kind = "" if self._type is str else f", of={self._type.__name__}"
        return f"with_key({self._values!r}{kind})"

    def deserialize(self, body: bytes, properties: Mapping[str, str]) -> Keyed[K, V]:
        key = key_from_properties(properties)
        self._check([key])
        return Keyed(key, self._values.deserialize(body, properties).value)

    def deserialize_many(
        self, bodies: pa.BinaryArray, properties: PropertyColumns
    ) -> tuple[list[K] | None, list[V]]:
        keys = keys_from_columns(properties(KEYS), properties(EXACT_KEY))
        self._check(keys)
        return keys, self._values.deserialize_many(bodies, properties)[1]

    def _check(self, keys: list[Any]) -> None:
        for found in set(map(type, keys)):
            if not issubclass(found, self._type):
                what = "no key" if found is type(None) else f"a key of type {found.__name__}"
                raise DeserializationError(
                    f"with_key(of={self._type.__name__}) met a message with {what}",
                    hint="name the type that the keys have; of=object takes every message,"
                    " also one without a key",
                )


class Serializer(ABC, Generic[K, V]):
    """Writes the bodies of messages; the key travels in the properties beside it.

    Sinks take serdes and plain callables too; this class is for one that writes many at once.
    """

    @abstractmethod
    def serialize(self, key: K, value: V) -> bytes:
        """Write one body."""

    def serialize_many(self, keys: list[K], values: list[V]) -> pa.BinaryArray:
        """Write many bodies; any exception means that some record is bad."""
        return pa.array(list(map(self.serialize, keys, values)), pa.binary())


class _SerdeSerializer(Serializer[Any, V]):
    """Writes the value by a serde."""

    def __init__(self, serde: Serde[V]) -> None:
        self._serde = serde

    def __repr__(self) -> str:
        return repr(self._serde)

    def serialize(self, key: Any, value: V) -> bytes:  # noqa: ARG002
        return self._serde.serialize(value)

    def serialize_many(self, keys: list[Any], values: list[V]) -> pa.BinaryArray:  # noqa: ARG002
        return self._serde.serialize_many(values)


class _FunctionSerializer(Serializer[Any, Any]):
    """Writes the body by a callable of the value, or of key and value."""

    def __init__(self, function: Callable[..., bytes], *, takes_key: bool) -> None:
        self._function = function
        self._takes_key = takes_key

    def __repr__(self) -> str:
        return callable_name(self._function)

    def serialize(self, key: Any, value: Any) -> bytes:
        return self._function(key, value) if self._takes_key else self._function(value)

    def serialize_many(self, keys: list[Any], values: list[Any]) -> pa.BinaryArray:
        columns = (keys, values) if self._takes_key else (values,)
        return pa.array(list(map(self._function, *columns)), pa.binary())


def callable_name(function: Callable[..., Any]) -> str:
    """Return the name of a function for messages."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return str(name).rpartition("<locals>.")[2]


def as_deserializer(
    source: object, names: Mapping[str, Any] | None = None
) -> Deserializer[Any, Any]:
    """Make a deserializer of whatever a source takes.

    Parameters
    ----------
    source
        A deserializer; a serde, or a type such as a dataclass, which is read as JSON; or a callable
        that takes the body and returns the value, or :class:`Keyed`.
    names
        Local names that the callable's annotations may use.

    Raises
    ------
    TypeError
        If it is none of these.
    """
    if isinstance(source, Deserializer):
        return source
    serde = source if isinstance(source, Serde) else document_serde_for(source)
    if serde is not None:
        return _SerdeDeserializer(serde)
    if callable(source):
        return _FunctionDeserializer(source, result_hint(source, names))
    message = f"a deserializer is a serde or a callable of the body, not {source!r:.100}"
    raise TypeError(message)


def as_serializer(target: object) -> Serializer[Any, Any]:
    """Make a serializer of whatever a sink takes.

    Parameters
    ----------
    target
        A serializer; a serde, or a type such as a dataclass, which is written as JSON; or a
        callable that returns the body.  A callable with two required parameters takes key and
        value, any other takes the value.

    Raises
    ------
    TypeError
        If it is none of these.
    """
    if isinstance(target, Serializer):
        return target
    serde = target if isinstance(target, Serde) else document_serde_for(target)
    if serde is not None:
        return _SerdeSerializer(serde)
    if callable(target):
        return _FunctionSerializer(target, takes_key=required_parameters(target) == 2)
    message = f"a serializer is a serde or a callable of the value, not {target!r:.100}"
    raise TypeError(message)


def required_parameters(function: Callable[..., Any]) -> int:
    """Count the positional parameters that a call must give; 1 where that is not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters)


@overload
def with_key(values: Serde[V] | type[V] | Callable[[bytes], V]) -> Deserializer[str, V]: ...
@overload
def with_key(
    values: Serde[V] | type[V] | Callable[[bytes], V], *, of: type[K]
) -> Deserializer[K, V]: ...
def with_key(
    values: Serde[Any] | type[Any] | Callable[[bytes], Any], *, of: type[Any] = str
) -> Any:
    """Make a deserializer that also returns the message's key.

    It reads back what a sink wrote: any key that Headrace sends, or the text in ``KEYS`` of any
    other producer.

    Parameters
    ----------
    values
        Reads the body: a serde, a type such as a dataclass, or a callable.
    of
        Type of the keys.  A message whose key is missing or of another type cannot be read: the
        source's ``on_error`` decides.  ``object`` takes every message.

    Examples
    --------
    >>> from headrace import serdes
    >>> with_key(serdes.json).deserialize(b"3", {"KEYS": "word"})
    Keyed(key='word', value=3)
    """
    return KeyDeserializer(as_deserializer(values), of)
