"""What went wrong, as the answer that tells the client."""

from __future__ import annotations

import logging
import struct
from collections import Counter
from typing import TYPE_CHECKING

from headrace.broker.requests import Request, request_name
from headrace.errors import (
    BrokerError,
    BrokerStorageError,
    CorruptLogError,
    HeadraceError,
    MessageTooLargeError,
    NotPrimaryError,
    ProtocolError,
    StoreError,
)
from headrace.protocol.codes import ResponseCode
from headrace.protocol.replication import PRIMARY
from headrace.quiet_log import QuietLog

if TYPE_CHECKING:
    from headrace.protocol.frames import Command

__all__ = ["Refusals", "failure"]

_quiet = QuietLog(logging.getLogger(__name__))
_CODES = frozenset(map(int, ResponseCode))


class Refusals:
    """Counts the requests that were refused, by the names of their codes, and tells of some."""

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


def failure(request: Request, error: Exception) -> Command:
    """Turn an error into the answer to a request."""
    if isinstance(error, OSError) and not isinstance(error, HeadraceError):
        hint = "Make room on the disk, or look at its health; what is stored stays readable."
        message = f"the broker could not write {error.filename or 'a file'}: {error.strerror}"
        error = BrokerStorageError(message, hint=hint)
    if not isinstance(error, HeadraceError):
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
    if isinstance(error, NotPrimaryError):
        answer.ext[PRIMARY] = error.primary
    return answer


def _number(error: HeadraceError) -> int:
    if isinstance(error, BrokerError):
        return ResponseCode.SYSTEM_ERROR if error.number is None else error.number
    if isinstance(error, MessageTooLargeError):
        return ResponseCode.MESSAGE_ILLEGAL
    if isinstance(error, ProtocolError):
        return ResponseCode.INVALID_PARAMETER
    if isinstance(error, StoreError) and not isinstance(error, CorruptLogError):
        return ResponseCode.STORAGE_FAILED
    return ResponseCode.SYSTEM_ERROR
