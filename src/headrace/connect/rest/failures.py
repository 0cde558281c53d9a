"""From errors to answers, in one place."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from headrace.connect.rest.calls import Answer
from headrace.errors import (
    ConfigurationError,
    ConnectConflictError,
    ConnectNotFoundError,
    ConnectRequestError,
    HeadraceError,
    PluginFailedError,
    WorkerStoppingError,
)

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["RETRY_AFTER", "failure", "respond_to_failure"]

logger = logging.getLogger(__name__)

RETRY_AFTER = "1"
"""Seconds after which whoever is refused for now may try again."""

#: What is said in words of HTTP; the first that fits.
_STATUS: dict[type[HeadraceError], HTTPStatus] = {
    ConnectRequestError: HTTPStatus.BAD_REQUEST,
    ConfigurationError: HTTPStatus.BAD_REQUEST,
    ConnectNotFoundError: HTTPStatus.NOT_FOUND,
    ConnectConflictError: HTTPStatus.CONFLICT,
    WorkerStoppingError: HTTPStatus.SERVICE_UNAVAILABLE,
    PluginFailedError: HTTPStatus.INTERNAL_SERVER_ERROR,
}


def failure(error: Exception) -> Answer:
    """Make the answer that tells of an error.

    Examples
    --------
    >>> from headrace.errors import ConnectNotFoundError
    >>> failure(ConnectNotFoundError("Connector a not found")).value
    {'error_code': 404, 'message': 'Connector a not found'}
    """
    if isinstance(error, HTTPException):
        headers = dict(error.headers or {})
        return _answer(error.status_code, error.detail, headers)
    if isinstance(error, ClientDisconnect):
        # Nobody is there to read it, and nothing has failed here.
        return _answer(HTTPStatus.BAD_REQUEST, "the request ended before its body did", {})
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), None)
    retriable = isinstance(error, HeadraceError) and error.retriable
    if status is None:
        status = HTTPStatus.SERVICE_UNAVAILABLE if retriable else HTTPStatus.INTERNAL_SERVER_ERROR
    known = isinstance(error, HeadraceError)
    message = str(error) if known else f"{type(error).__name__}: {error}"
    return _answer(status, message, {"Retry-After": RETRY_AFTER} if retriable else {})


async def respond_to_failure(request: Request, error: Exception) -> Response:
    """Answer a request whose handler raised."""
    answer = failure(error)
    if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, HeadraceError):
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return answer.response()


def _answer(status: int, message: str, headers: dict[str, str]) -> Answer:
    value = {"error_code": int(status), "message": message}
    return Answer(status=int(status), value=value, headers=headers)
