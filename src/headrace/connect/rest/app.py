"""The application: the table of routes, and what holds for each request."""

from __future__ import annotations

import logging
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.connect.rest.calls import Answer, HostGuard, RefusedRequests, RestCall, TokenGuard
from headrace.connect.rest.metrics import Metrics
from headrace.connect.rest.openapi import description
from headrace.connect.rest.operations import OPERATIONS, Operation
from headrace.connect.worker.reporting import Health
from headrace.errors import (
    ConfigurationError,
    ConnectConflictError,
    ConnectNotFoundError,
    ConnectRequestError,
    HeadraceError,
    PluginFailedError,
    WorkerStoppingError,
)
from headrace.private import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from headrace.connect.worker import Connect, Startup, WorkerSettings


# From errors to answers, in one place.

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


def make_app(connect: Connect, refusals: RefusedRequests) -> Starlette:
    """Make the application that serves a worker.

    Parameters
    ----------
    connect
        What answers the requests; its settings say who may call.
    refusals
        Takes note of who may not.
    """
    metrics = Metrics(connect, refusals)

    async def show_metrics(_: Request) -> Response:
        return Response(metrics.text(), media_type=metrics.media_type)

    async def show_description(_: Request) -> Response:
        secured = connect.settings.token is not None
        return Answer(value=description(OPERATIONS, secured=secured)).response()

    routes = [
        Route(path, _Endpoint(methods, connect, metrics)) for path, methods in _by_path().items()
    ]
    routes += [
        Route("/metrics", show_metrics, methods=["GET"]),
        Route("/openapi.json", show_description, methods=["GET"]),
    ]
    app = Starlette(
        routes=routes,
        middleware=_middleware(connect.settings, refusals),
        exception_handlers={
            404: _respond_to_unknown_path,
            HTTPException: respond_to_failure,
            Exception: respond_to_failure,
        },
    )
    app.router.redirect_slashes = False
    return app


_LATER = {"Retry-After": RETRY_AFTER}


class _Slashes:
    """Takes a slash from the end of a path: kcctl asks for ``/connectors/``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "/")
        if scope["type"] == "http" and path != "/" and path.endswith("/"):
            scope = {**scope, "path": path.rstrip("/") or "/"}
        await self._app(scope, receive, send)


def make_waiting_app(
    settings: WorkerSettings, startup: Startup, refusals: RefusedRequests
) -> Starlette:
    """Make the application that answers while there is no worker: what it does instead.

    Parameters
    ----------
    settings
        Say who may call.
    startup
        What is done.
    refusals
        Takes note of who may not call.
    """

    async def show_life(_: Request) -> Response:
        return Answer(value=Health("alive", startup.health().message)).response()

    async def show_health(_: Request) -> Response:
        return Answer(status=503, value=startup.health(), headers=_LATER).response()

    async def refuse(_: Request, __: Exception) -> Response:
        value = {"error_code": 503, "message": startup.health().message}
        return Answer(status=503, value=value, headers=_LATER).response()

    app = Starlette(
        routes=[
            Route("/livez", show_life),
            Route("/readyz", show_health),
            Route("/health", show_health),
        ],
        middleware=_middleware(settings, refusals),
        exception_handlers={404: refuse, 405: refuse},
    )
    app.router.redirect_slashes = False
    return app


def _middleware(settings: WorkerSettings, refusals: RefusedRequests) -> list[Middleware]:
    parts = []
    if settings.cors_origins:
        parts.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.cors_origins),
                allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"],
                allow_headers=["*"],
                expose_headers=["Location"],
            )
        )
    parts.append(Middleware(_Slashes))
    if settings.token is not None:
        parts.append(Middleware(TokenGuard, token=settings.token, refusals=refusals))
    elif is_loopback(settings.host):
        parts.append(Middleware(HostGuard, refusals=refusals))
    return parts


def _by_path() -> dict[str, dict[str, Operation]]:
    found: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        found.setdefault(operation.path, {})[operation.method] = operation
    return found


class _Endpoint:
    """One path with all its methods."""

    def __init__(self, methods: dict[str, Operation], connect: Connect, metrics: Metrics) -> None:
        self._methods = methods
        self._connect = connect
        self._metrics = metrics
        self._allowed = ", ".join([*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, whatever happens."""
        request = Request(scope, receive, send)
        began = time.monotonic()
        operation = self._methods.get("GET" if request.method == "HEAD" else request.method)
        try:
            response = await self._respond(request, operation)
        except Exception as error:  # noqa: BLE001 - one mapper knows what to answer to each
            response = await respond_to_failure(request, error)
        if operation is not None:
            self._metrics.answered(operation, response.status_code, time.monotonic() - began)
        await response(scope, receive, send)

    async def _respond(self, request: Request, operation: Operation | None) -> Response:
        if operation is not None:
            answer = await operation.handle(RestCall(request, self._connect))
            return answer.response()
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={"Allow": self._allowed})
        message = f"HTTP 405 Method Not Allowed\n  → use {self._allowed}"
        raise HTTPException(405, message, headers={"Allow": self._allowed})


async def _respond_to_unknown_path(request: Request, _: Exception) -> Response:
    message = (
        f"HTTP 404 Not Found: nothing is at {request.url.path}\n"
        "  → GET /openapi.json tells what there is"
    )
    return Answer(status=404, value={"error_code": 404, "message": message}).response()
