"""A request as handlers see it, and what may become of it."""

from __future__ import annotations

import logging
import struct
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from headrace import errors
from headrace.protocol.codes import ResponseCode
from headrace.protocol.frames import Buffer, Command, request_name
from headrace.protocol.replication import PRIMARY
from headrace.protocol.routes import loads
from headrace.quiet_log import QuietLog

if TYPE_CHECKING:
    from headrace.broker.settings import Limits


T = TypeVar("T")

_NO_NUMBER = 1 << 63
_NO_UNSIGNED = 1 << 64
#: What fits this cannot hold so many items that it matters.
_SMALL_BODY = 16 * 1024
#: Bodies of requests that name single things, and of settings, are no larger.
_MODEST_BODY = 64 * 1024

Outcome = Command | Awaitable[Command] | None
"""An answer, an answer to come, or None: the handler answers by itself, or never."""


class Peer(Protocol):
    """The connection that a request came on."""

    @property
    def number(self) -> int:
        """Number of the connection, never used again."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port at the other end."""

    def send(self, command: Command) -> None:
        """Send a response, or a request of our own; a peer that is gone gets nothing."""

    def hold(self, size: int) -> None:
        """Count bytes that were taken but not yet answered; too many stop the reading."""

    @property
    def limits(self) -> Limits:
        """Bounds on what it may ask for."""

    def release(self, size: int) -> None:
        """Count bytes as answered."""


@dataclass(frozen=True, slots=True)
class Request:
    """One command with the connection it came on, and typed access to its fields."""

    command: Command
    peer: Peer
    #: The account that asks, where what it may do is bounded; None: everything.
    account: str | None = None
    #: Bodies that were read ahead, by their types; None if there are none.
    read: dict[Any, Any] | None = None

    @property
    def is_large(self) -> bool:
        """Whether to look into the body may take long."""
        return len(self.command.payload) > _SMALL_BODY

    def text(self, name: str, default: str | None = None) -> str:
        """Read a field.

        Raises
        ------
        InvalidParameterError
            When it is missing and has no default.
        """
        value = self.command.ext.get(name, default)
        if value is None:
            what = request_name(self.command.code)
            raise errors.InvalidParameterError(f"{what} lacks the field {name!r}")
        return value

    def number(self, name: str, default: int | None = None, *, signed: bool = True) -> int:
        """Read a field that holds an integer.

        Raises
        ------
        InvalidParameterError
            When it is missing and has no default, or is not an integer.
        """
        value = self.command.ext.get(name)
        if value is None:
            return int(self.text(name)) if default is None else default
        try:
            number = int(value)
        except ValueError:
            number = _NO_UNSIGNED
        if (-_NO_NUMBER < number < _NO_NUMBER) if signed else (0 <= number < _NO_UNSIGNED):
            return number
        what = request_name(self.command.code)
        message = f"field {name!r} of {what} is {value[:40]!r}, which is no integer of 64 bits"
        raise errors.InvalidParameterError(message)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Read a field that holds true or false."""
        value = self.command.ext.get(name)
        return default if value is None else value.lower() == "true"

    def body(self, kind: type[T]) -> T:
        """Read a JSON body that names a thing or two, leniently, as RocketMQ's clients write it.

        Raises
        ------
        InvalidParameterError
            When it is larger than such a body.
        """
        self._require_modest()
        return loads(self._json() or b"{}", kind)

    def large_body(self, kind: type[T]) -> T:
        """Read a JSON body that may be a list of many things, leniently.

        Caller: whoever may take a second for it; the event loop may not (``Core.read``).
        """
        if self.read is None:
            return loads(self._json() or b"{}", kind)
        if kind not in self.read:
            self.read[kind] = loads(self._json() or b"{}", kind)
        found: T = self.read[kind]
        return found

    def lines(self) -> list[str]:
        """Read a body of settings, a line for each.

        Raises
        ------
        InvalidParameterError
            When it is larger than such a body.
        """
        self._require_modest()
        return bytes(self.command.payload).decode(errors="replace").splitlines()

    def _require_modest(self) -> None:
        size = len(self.command.payload)
        if size > _MODEST_BODY:
            message = f"the body of {request_name(self.command.code)} has {size} bytes"
            raise errors.InvalidParameterError(f"{message}, {_MODEST_BODY} are possible")

    def _json(self) -> Buffer:
        """Return the JSON body unless reading it would take too much memory."""
        payload = self.command.payload
        size, limits = len(payload), self.peer.limits
        if size <= _SMALL_BODY:
            return payload
        name = request_name(self.command.code)
        if size > limits.max_json_body:
            message = f"the body of {name} has {size} bytes, {limits.max_json_body} are possible"
            raise errors.InvalidParameterError(message, hint="The limit is max_json_body.")
        text = bytes(payload)
        items = sum(map(text.count, (b",", b"{", b"[")))
        if items > limits.max_json_items:
            message = f"the body of {name} has {items} items, {limits.max_json_items} are possible"
            raise errors.InvalidParameterError(message, hint="The limit is max_json_items.")
        return payload

    def strict_body(self, kind: type[T]) -> T:
        """Read a JSON body of our own protocol.

        Raises
        ------
        InvalidParameterError
            When it does not have the right shape.
        """
        try:
            return msgspec.json.decode(self._json(), type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            what = request_name(self.command.code)
            raise errors.InvalidParameterError(
                f"the body of {what} cannot be read: {error}"
            ) from error

    def reply(
        self,
        code: ResponseCode = ResponseCode.SUCCESS,
        remark: str | None = None,
        *,
        ext: dict[str, str] | None = None,
        body: Buffer | list[Buffer] = b"",
    ) -> Command:
        """Make an answer."""
        return self.command.reply(code, remark, ext, body)

    def answer(self, command: Command) -> None:
        """Send an answer, unless the peer wants none."""
        if not self.command.is_oneway:
            self.peer.send(command)


# What went wrong, as the answer that tells the client.

_quiet = QuietLog(logging.getLogger(__name__))
_CODES = frozenset(map(int, ResponseCode))


class Refusals:
    """Counts the requests that were refused, by the names of their codes, and logs some of them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def note(self, request: Request, answer: Command) -> None:
        """Take note of an answer that refuses."""
        code = answer.code
        name = ResponseCode(code).name if code in _CODES else str(code)
        self.counts[name] += 1
        if code == ResponseCode.NO_PERMISSION:
            peer = request.peer.address[0]
            _quiet.warning("refused a request of %s: %s", peer, answer.remark)

    def of(self, request: Request, error: Exception) -> Command:
        """Turn an error into the answer to a request, and take note of it."""
        answer = failure(request, error)
        self.note(request, answer)
        return answer


def failure(request: Request, error: Exception) -> Command:
    """Turn an error into the answer to a request."""
    if isinstance(error, OSError) and not isinstance(error, errors.HeadraceError):
        hint = "Make room on the disk, or look at its health; what is stored stays readable."
        message = f"the broker could not write {error.filename or 'a file'}: {error.strerror}"
        error = errors.BrokerStorageError(message, hint=hint)
    if not isinstance(error, errors.HeadraceError):
        what = request_name(request.command.code)
        if isinstance(error, OverflowError | struct.error):
            # A number of the request does not fit the place that it is for.
            remark = f"a number in {what} is out of range: {error}"
            return request.reply(ResponseCode.INVALID_PARAMETER, remark)
        _quiet.warning("%s from %s failed", what, request.peer.address, error=error)
        remark = f"{what} failed inside the broker: {type(error).__name__}: {error}"
        return request.reply(ResponseCode.SYSTEM_ERROR, remark)
    answer = request.reply(ResponseCode.SYSTEM_ERROR, str(error))
    # Not every number is one that the protocol names.
    answer.code = _number(error)
    if isinstance(error, errors.NotPrimaryError):
        answer.ext[PRIMARY] = error.primary
    return answer


def _number(error: errors.HeadraceError) -> int:
    if isinstance(error, errors.BrokerError):
        return ResponseCode.SYSTEM_ERROR if error.number is None else error.number
    if isinstance(error, errors.MessageTooLargeError):
        return ResponseCode.MESSAGE_ILLEGAL
    if isinstance(error, errors.ProtocolError):
        return ResponseCode.INVALID_PARAMETER
    if isinstance(error, errors.StoreError) and not isinstance(error, errors.CorruptLogError):
        return ResponseCode.STORAGE_FAILED
    return ResponseCode.SYSTEM_ERROR
