"""From errors to answers, in one place."""

from __future__ import annotations

import logging
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.connect.rest.calls import Answer
from headrace.connect.worker.refusals import NotReadyError, RefusedError
from headrace.errors import ConfigurationError, HeadraceError

__all__ = ["failure", "respond_to_failure"]

logger = logging.getLogger(__name__)

_RETRY_AFTER = "1"


def failure(error: Exception) -> Answer:
    """Make the answer that tells of an error.

    Examples
    --------
    >>> from headrace.connect.worker.refusals import NotThereError
    >>> failure(NotThereError("there is no connector 'a'")).value
    {'error_code': 404, 'message': "there is no connector 'a'"}
    """
    if isinstance(error, HTTPException):
        headers = dict(error.headers or {})
        return _answer(error.status_code, error.detail, headers)
    if isinstance(error, NotReadyError):
        return _answer(error.status, str(error), {"Retry-After": _RETRY_AFTER})
    if isinstance(error, RefusedError):
        return _answer(error.status, str(error), {})
    if isinstance(error, ConfigurationError):
        return _answer(HTTPStatus.BAD_REQUEST, str(error), {})
    if isinstance(error, HeadraceError) and error.retriable:
        return _answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error), {"Retry-After": _RETRY_AFTER})
    return _answer(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}", {})


async def respond_to_failure(request: Request, error: Exception) -> Response:
    """Answer a request whose handler raised."""
    answer = failure(error)
    if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, RefusedError):
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return answer.response()


def _answer(status: int, message: str, headers: dict[str, str]) -> Answer:
    value = {"error_code": int(status), "message": message}
    return Answer(status=int(status), value=value, headers=headers)
