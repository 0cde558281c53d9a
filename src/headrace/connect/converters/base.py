"""What a converter is: keys, values and headers of plugins to the bytes of messages, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import pyarrow as pa

from headrace.connect.config import Config, ConfigDeclaration, declare
from headrace.connect.converters.steps import UnfitError, beginning
from headrace.errors import (
    DeserializationError,
    HeadraceError,
    ProcessingError,
    SchemaError,
    SerializationError,
)

if TYPE_CHECKING:
    from headrace.connect.schema import Schema


_WRITING = (
    "correct the value or its schema, choose another converter, or let bad records go to a"
    " dead-letter topic with errors.tolerance=all"
)
_READING = (
    "choose the converter that wrote it, or let bad records go to a dead-letter topic with"
    " errors.tolerance=all"
)

# What a converter may raise about a value or a body that does not fit.
_UNFIT = (ValueError, TypeError, SchemaError, RecursionError)


class Converted(NamedTuple):
    """A value beside its schema; the schema is ``None`` for data of JSON's shape."""

    schema: Schema | None
    value: Any


class Column(NamedTuple):
    """Many values of one schema as Arrow data."""

    schema: Schema | None
    values: pa.Array


class Converter(ABC):
    """Writes keys or values of records as bytes, and reads them back.

    A subclass has :meth:`write` and :meth:`read`, which may raise any ``ValueError`` or
    ``TypeError``: the caller learns the topic, part of the record, reason and the value's start.

    Examples
    --------
    >>> class ShoutingConverter(Converter):
    ...     def write(self, topic, schema, value):
    ...         return value.upper().encode()
    ...
    ...     def read(self, topic, body):
    ...         return Converted(None, body.decode())
    >>> ShoutingConverter.of({}).to_bytes("lines", None, "hello")
    b'HELLO'
    """

    version: ClassVar[str] = "undefined"
    #: The keys that it can be told, without the prefix such as ``value.converter.``.
    config: ClassVar[ConfigDeclaration] = declare()

    #: Whether it converts keys; values otherwise.
    is_key: bool = False

    @classmethod
    def of(cls, config: Mapping[str, str], *, is_key: bool = False) -> Self:
        """Make a converter that is configured."""
        made = cls()
        made.configure(config, is_key=is_key)
        return made

    def configure(self, config: Mapping[str, str], *, is_key: bool = False) -> None:
        """Take the config; called once, before anything else.

        Raises
        ------
        ConnectorConfigError
            Naming everything that is wrong with it.
        """
        self.is_key = is_key
        self.set_up(type(self).config.parse(config))

    def set_up(self, config: Config) -> None:  # noqa: B027 - most have nothing to prepare
        """Prepare, by the typed config."""

    @abstractmethod
    def write(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Write one value; ``None`` makes a message without a body."""

    @abstractmethod
    def read(self, topic: str, body: bytes | None) -> Converted:
        """Read one value."""

    def to_bytes(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Write one value.

        Raises
        ------
        SerializationError
            Naming topic, part of the record, place and reason.
        """
        try:
            return self.write(topic, schema, value)
        except _UNFIT as error:
            raise self._unwritten(f"the {self.part}", topic, value, error) from error

    def from_bytes(self, topic: str, body: bytes | None) -> Converted:
        """Read one value.

        Raises
        ------
        DeserializationError
            Naming topic, part of the record, place and reason.
        """
        try:
            return self.read(topic, body)
        except _UNFIT as error:
            raise self._unread(f"the {self.part}", topic, body, error) from error

    def to_column(self, topic: str, schema: Schema | None, values: pa.Array) -> pa.Array:
        """Write a whole column, and return it as ``binary``, null where there is no body.

        Without an object per value where the converter knows how.

        Raises
        ------
        SerializationError
            For the first value that cannot be written.
        """
        try:
            column = self.write_column(topic, schema, values)
        except (*_UNFIT, pa.ArrowException):
            # One of the values: they say which, one by one.
            column = None
        if column is not None:
            return column
        singly = values.to_pylist(maps_as_pydicts="strict")
        return pa.array([self.to_bytes(topic, schema, one) for one in singly], pa.binary())

    def from_column(self, topic: str, bodies: pa.Array) -> Column | None:
        """Read a whole column of ``binary`` without an object per value.

        ``None`` where that cannot be done, or would not say the same as :meth:`from_bytes`,
        also where a body is broken: read the bodies one by one then.
        """
        try:
            return self.read_column(topic, bodies)
        except (*_UNFIT, pa.ArrowException):
            return None

    def write_column(
        self,
        topic: str,
        schema: Schema | None,
        values: pa.Array,
    ) -> pa.Array | None:
        """Write a column in one go, ``None`` where there is no faster way than one by one."""
        return None

    def read_column(self, topic: str, bodies: pa.Array) -> Column | None:
        """Read a column in one go, ``None`` where there is no faster way than one by one."""
        return None

    @property
    def part(self) -> str:
        """What it converts: the key or the value."""
        return "key" if self.is_key else "value"

    def _unwritten(self, what: str, topic: str, value: Any, error: Exception) -> ProcessingError:
        return SerializationError(
            f"{type(self).__name__} cannot write {what} of a record for topic '{topic}':"
            f" {_reason(error)}; {what} begins {beginning(value)}",
            hint=_hint_of(error, _WRITING),
        )

    def _unread(
        self, what: str, topic: str, body: bytes | None, error: Exception
    ) -> ProcessingError:
        return DeserializationError(
            f"{type(self).__name__} cannot read {what} of a record of topic '{topic}':"
            f" {_reason(error)}; the body begins {beginning(body)}",
            hint=_hint_of(error, _READING),
        )


class HeaderConverter(Converter):
    """Writes values of headers as bytes, and reads them back."""

    def header_to_bytes(
        self, topic: str, header: str, schema: Schema | None, value: Any
    ) -> bytes | None:
        """Write the value of one header.

        Raises
        ------
        SerializationError
            Naming topic, header, place and reason.
        """
        try:
            return self.write(topic, schema, value)
        except _UNFIT as error:
            raise self._unwritten(f"the header '{header}'", topic, value, error) from error

    def header_from_bytes(self, topic: str, header: str, body: bytes | None) -> Converted:
        """Read the value of one header.

        Raises
        ------
        DeserializationError
            Naming topic, header, place and reason.
        """
        try:
            return self.read(topic, body)
        except _UNFIT as error:
            raise self._unread(f"the header '{header}'", topic, body, error) from error


def _hint_of(error: Exception, usual: str) -> str:
    own = error.hint if isinstance(error, UnfitError | HeadraceError) else None
    return usual if own is None else own


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, HeadraceError) else str(error)
