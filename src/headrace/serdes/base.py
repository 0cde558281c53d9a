"""The base of serdes: values of one type to bytes and back, one at a time or many at once."""

from __future__ import annotations

import hmac
import pickle
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import pyarrow as pa

from headrace.encoding import decode, encode_exact, encode_exact_many
from headrace.errors import DeserializationError, SerializationError

if TYPE_CHECKING:
    from headrace.columns.schema import Schema


T = TypeVar("T")


class Serde(ABC, Generic[T]):
    """Writes values of one type as bytes and reads them back.

    A subclass defines :meth:`serialize` and :meth:`deserialize`; the forms for many values call
    these unless it knows a faster way.  Any exception they raise names a bad value; the caller
    adds where it came from.

    Examples
    --------
    >>> class Celsius(Serde[float]):
    ...     name = "celsius"
    ...
    ...     def serialize(self, value: float) -> bytes:
    ...         return f"{value:.1f}".encode()
    ...
    ...     def deserialize(self, data: bytes) -> float:
    ...         return float(data)
    >>> Celsius().serialize(21.04)
    b'21.0'
    """

    #: Shown by ``describe()``.
    name: ClassVar[str] = ""
    #: Whether it writes text in UTF-8.
    is_text: ClassVar[bool] = False

    @property
    def hint(self) -> Any:
        """The type of its values, ``Any`` where it is open."""
        return Any

    @property
    def schema(self) -> Schema | None:
        """The columns of its values; None where they are not known."""
        from headrace.columns.schema import Schema

        return Schema.of(self.hint)

    def read_columns(self, data: pa.BinaryArray) -> pa.RecordBatch:
        """Read the columns of many values, none of them null, without more objects than needed.

        Caller: sources whose records go to operators over columns.
        """
        schema = self.schema
        assert schema is not None
        return schema.batch(self.deserialize_many(data))

    @abstractmethod
    def serialize(self, value: T) -> bytes:
        """Write one value."""

    @abstractmethod
    def deserialize(self, data: bytes) -> T:
        """Read one value."""

    def serialize_many(self, values: list[T]) -> pa.BinaryArray:
        """Write many values."""
        return pa.array(list(map(self.serialize, values)), pa.binary())

    def deserialize_many(self, data: pa.BinaryArray) -> list[T]:
        """Read many values, none of them null."""
        return list(map(self.deserialize, data.to_pylist()))

    def __repr__(self) -> str:
        return self.name or type(self).__name__


def wrong_type(serde: Serde[Any], value: object, expected: str) -> TypeError:
    """Make the error for a value of a type that a serde does not write."""
    return TypeError(
        f"serdes.{serde!r} writes {expected}, not {type(value).__qualname__}: {value!r:.100}"
    )


# Pickles under a signature: what somebody else wrote is never opened.
#
# Reading a pickle runs whatever its writer wants.  Anyone who may send to a topic can write to it,
# so bytes from outside are opened only where they carry an HMAC under a secret that only the job
# has (SHA-256, :rfc:`2104`, cut to 16 bytes)::
#
#     "P"   16 bytes of HMAC   the pickle
#
# A serde does not know which job it will belong to.  It takes the secret along when it travels to a
# worker with the job (:func:`travelling_with`); until then it uses one that ends with the process.

#: Bytes of a secret that is made here; a secret that is given has at least half as many.
SECRET_BYTES: Final = 32

#: No plain data begins with it.
_TAG = b"P"
_MAC = 16
_BEGIN = len(_TAG) + _MAC
#: For what stays in this process, as in a ``TopologyTestDriver``.
_own = secrets.token_bytes(SECRET_BYTES)
_given: ContextVar[Callable[[], bytes] | None] = ContextVar("headrace_secret", default=None)


@contextmanager
def travelling_with(secret: Callable[[], bytes]) -> Iterator[None]:
    """Make serdes of pickles use a job's secret, which those that are pickled meanwhile keep.

    Parameters
    ----------
    secret
        Returns the secret; called only where a serde needs one.
    """
    token = _given.set(secret)
    try:
        yield
    finally:
        _given.reset(token)


class _Signing(Serde[Any]):
    """Writes and reads pickles under a secret: its own, the job's, or the process's."""

    _secret: bytes | None = None

    @property
    def hint(self) -> type[object]:
        return object

    def _kept(self) -> bytes | None:
        """Return the secret that goes along with this serde; None if there is no job yet."""
        if self._secret is None and (given := _given.get()):
            return given()
        return self._secret

    def _signed(self, value: Any) -> bytes:
        data = pickle.dumps(value, protocol=5)
        return b"".join((_TAG, self._mac(data), data))

    def _opened(self, data: bytes) -> Any:
        body = memoryview(data)[_BEGIN:]
        if data[:1] != _TAG or not hmac.compare_digest(data[1:_BEGIN], self._mac(body)):
            raise DeserializationError(
                f"{len(data):,} bytes that should be a pickle were not signed by this job: they"
                f" were not opened ({data[:20]!r})",
                hint="somebody else wrote them, or this job did under another secret: give all that"
                " write and read them the same one (the setting pickle_secret)",
            )
        return pickle.loads(body)  # noqa: S301 - this job has signed it

    def _mac(self, data: bytes | memoryview) -> bytes:
        return hmac.digest(self._kept() or _own, data, "sha256")[:_MAC]


class PickleSerde(_Signing):
    """Pickles of any Python object, signed; never chosen by default.

    Bytes without a signature under the job's secret are not opened: they are a record that cannot
    be read.  Renaming a class makes its stored values unreadable.

    Parameters
    ----------
    secret
        Key of the signatures, at least 16 bytes; default: the job's own, and outside of jobs one
        that ends with the process.

    Examples
    --------
    >>> from headrace import serdes
    >>> serdes.pickle.deserialize(serdes.pickle.serialize(1 + 2j))
    (1+2j)
    >>> import pickle
    >>> serdes.pickle.deserialize(pickle.dumps(1 + 2j))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    headrace.errors.DeserializationError: ...
    """

    name: ClassVar[str] = "pickle"

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = None if secret is None else checked_secret(secret)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._kept(),)

    def serialize(self, value: Any) -> bytes:
        """Return the pickle of a value behind its signature."""
        return self._signed(value)

    def deserialize(self, data: bytes) -> Any:
        """Return the value of a pickle that carries the right signature.

        Raises
        ------
        DeserializationError
            If it carries no signature, or another one.
        """
        return self._opened(data)


class StateSerde(_Signing):
    """Plain data as ``plain`` writes it, and signed pickles of the rest where they are asked for.

    Tasks of spouts and bolts keep their state so: plain data can be read without its program.

    Parameters
    ----------
    pickles
        Whether a value that is not plain data is pickled; otherwise it is refused.
    secret
        As for :class:`PickleSerde`.

    Examples
    --------
    >>> serde = StateSerde(pickles=True)
    >>> serde.serialize("be"), serde.deserialize(serde.serialize(1 + 2j))
    (b'sbe', (1+2j))
    """

    name: ClassVar[str] = "state"

    def __init__(self, *, pickles: bool = False, secret: bytes | None = None) -> None:
        self._pickles = pickles
        self._secret = secret

    def __reduce__(self) -> tuple[Any, ...]:
        return _state_serde, (self._pickles, self._kept() if self._pickles else self._secret)

    def serialize(self, value: Any) -> bytes:
        """Return the bytes of a value.

        Raises
        ------
        SerializationError
            If it is not plain data, and nobody has asked for pickles.
        """
        try:
            return encode_exact(value)
        except SerializationError as error:
            if self._pickles:
                return self._signed(value)
            raise SerializationError(error.message, hint=_HINT) from error

    def deserialize(self, data: bytes) -> Any:
        """Return the value that was written.

        Raises
        ------
        DeserializationError
            If the bytes are not plain data, or are a pickle that must not be opened.
        """
        if data[:1] != _TAG:
            return decode(data)
        if self._pickles:
            return self._opened(data)
        raise DeserializationError(
            f"a pickle of {len(data):,} bytes is not opened: this topology has not asked for any",
            hint=_HINT,
        )

    def serialize_many(self, values: list[Any]) -> pa.BinaryArray:
        """Write many values."""
        try:
            return pa.array(encode_exact_many(values), pa.binary())
        except SerializationError:
            return super().serialize_many(values)


_HINT = (
    "keep and emit plain data, or let what is none be pickled, under a secret of the job:"
    " TransactionTopologyBuilder(name, {'topology.fall.back.on.pickle': True})"
)


def _state_serde(pickles: bool, secret: bytes | None) -> StateSerde:  # noqa: FBT001 - a pickle gives no keywords
    return StateSerde(pickles=pickles, secret=secret)


def checked_secret(secret: bytes) -> bytes:
    """Refuse a secret that could be guessed.

    Raises
    ------
    SerializationError
        If it has fewer than 16 bytes.
    """
    if len(secret) < SECRET_BYTES // 2:
        raise SerializationError(
            f"a secret of {len(secret)} bytes could be guessed",
            hint=f"give at least {SECRET_BYTES // 2}: python -c 'import secrets;"
            " print(secrets.token_hex())'",
        )
    return secret
