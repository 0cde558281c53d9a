"""The application: the table of routes, and what holds for each request."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.connect.rest.calls import Answer, Call
from headrace.connect.rest.failures import respond_to_failure
from headrace.connect.rest.guard import TokenGuard
from headrace.connect.rest.metrics import Metrics
from headrace.connect.rest.openapi import description
from headrace.connect.rest.operations import OPERATIONS, Operation

if TYPE_CHECKING:
    from headrace.connect.worker import Connect

__all__ = ["make_app"]

Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(connect: Connect) -> Starlette:
    """Make the application that serves a worker.

    Parameters
    ----------
    connect
        What answers the requests; its settings say who may call.
    """
    metrics = Metrics(connect)

    async def show_metrics(request: Request) -> Response:
        return Response(metrics.text(), media_type=metrics.media_type)

    async def show_description(request: Request) -> Response:
        return Answer(value=description(OPERATIONS)).response()

    routes = [
        Route(path, _endpoint(path, methods, connect, metrics), methods=None)
        for path, methods in _by_path().items()
    ]
    routes += [
        Route("/metrics", show_metrics, methods=["GET"]),
        Route("/openapi.json", show_description, methods=["GET"]),
    ]
    app = Starlette(
        routes=routes,
        middleware=_middleware(connect),
        exception_handlers={
            404: _respond_to_unknown_path,
            HTTPException: respond_to_failure,
            Exception: respond_to_failure,
        },
    )
    app.router.redirect_slashes = False
    return app


class _Slashes:
    """Takes a slash from the end of a path: kcctl asks for ``/connectors/``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "/")
        if scope["type"] == "http" and path != "/" and path.endswith("/"):
            scope = {**scope, "path": path.rstrip("/") or "/"}
        await self._app(scope, receive, send)


def _middleware(connect: Connect) -> list[Middleware]:
    settings = connect.settings
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
        parts.append(Middleware(TokenGuard, token=settings.token))
    return parts


def _by_path() -> dict[str, dict[str, Operation]]:
    found: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        found.setdefault(operation.path, {})[operation.method] = operation
    return found


def _endpoint(
    path: str, methods: dict[str, Operation], connect: Connect, metrics: Metrics
) -> Endpoint:
    allowed = [*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"]

    async def respond(request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={"Allow": ", ".join(allowed)})
        operation = methods.get("GET" if request.method == "HEAD" else request.method)
        if operation is None:
            raise HTTPException(
                405,
                f"{request.method} is not for {request.url.path}; use {', '.join(allowed)}",
                headers={"Allow": ", ".join(allowed)},
            )
        began = time.monotonic()
        response = await _answered(operation, request, connect)
        metrics.answered(operation, response.status_code, time.monotonic() - began)
        return response

    return respond


async def _answered(operation: Operation, request: Request, connect: Connect) -> Response:
    try:
        answer = await operation.handle(Call(request, connect))
    except Exception as error:  # noqa: BLE001 - one mapper knows what to answer to each
        return await respond_to_failure(request, error)
    return answer.response()


async def _respond_to_unknown_path(request: Request, error: Exception) -> Response:
    message = f"there is nothing at {request.url.path}\n  → GET /openapi.json tells what there is"
    return Answer(status=404, value={"error_code": 404, "message": message}).response()
