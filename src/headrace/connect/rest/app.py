"""The application: the table of routes, and what holds for each request."""

from __future__ import annotations

import logging
import time
from collections import Counter as Tally
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.connect.rest.calls import (
    Answer,
    HostGuard,
    Operation,
    RefusedRequests,
    RestCall,
    TokenGuard,
    description,
)
from headrace.connect.rest.operations import OPERATIONS
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

    from headrace.connect.worker import Connect, Startup, UnitReport, WorkerSettings


# Figures for Prometheus, read from the worker when somebody asks.

_PREFIX = "headrace_connect"

#: Figures of tasks that only rise, by their names.
_MOVED = {
    "records": "Rows that a task has read and committed.",
    "bytes": "Bytes of these rows.",
    "written": "Messages that a task has written to topics.",
    "commits": "Batches that a task has committed.",
    "rollbacks": "Batches of a task that failed and were begun anew.",
}
#: What has failed in a task, by Kafka Connect's names.
_ERRORS = {
    "total-record-failures": "Tries that failed.",
    "total-record-errors": "Records that failed for good.",
    "total-records-skipped": "Records that were left out.",
    "total-retries": "Tries after the first.",
    "total-errors-logged": "Failures that were logged.",
    "deadletterqueue-produce-requests": "Dead letters.",
    "deadletterqueue-produce-failures": "Dead letters that could not be written.",
}
_LAST_ERROR = "last-error-timestamp"
_WAITS = "Whether a task waits for something outside: a peer, a topic, the brokers."
_LAG = "Messages in the queues of a sink's task that are not committed yet."


class Metrics:
    """The figures of one worker, in a registry of their own.

    Parameters
    ----------
    connect
        Whose figures they are.
    refusals
        What its server has refused.
    """

    #: What the text is, in words of HTTP.
    media_type = CONTENT_TYPE_LATEST

    def __init__(self, connect: Connect, refusals: RefusedRequests) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            f"{_PREFIX}_rest_requests",
            "Requests that were answered.",
            ["method", "path", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            f"{_PREFIX}_rest_request_seconds",
            "Time until the answer.",
            ["method", "path"],
            registry=self._registry,
        )
        self._registry.register(_Figures(connect, refusals))

    def answered(self, operation: Operation, status: int, seconds: float) -> None:
        """Count an answer."""
        self._requests.labels(operation.method, operation.path, str(status)).inc()
        self._seconds.labels(operation.method, operation.path).observe(seconds)

    def text(self) -> bytes:
        """Write all figures down."""
        return generate_latest(self._registry)


class _Figures(Collector):
    def __init__(self, connect: Connect, refusals: RefusedRequests) -> None:
        self._connect = connect
        self._refusals = refusals

    def collect(self) -> Iterator[Metric]:
        yield self._of_the_guards()
        yield from self._of_the_cluster()
        yield from self._of_the_worker()
        yield from self._of_the_tasks()
        yield from self._of_the_errors()

    def _of_the_guards(self) -> Metric:
        says = "Requests that were refused before anything looked at them, by reason."
        family = CounterMetricFamily(f"{_PREFIX}_rest_refused", says, labels=("reason",))
        for reason, count in sorted(self._refusals.counts.items()):
            family.add_metric((reason,), count)
        return family

    def _of_the_cluster(self) -> Iterator[Metric]:
        connectors: Tally[tuple[str, str]] = Tally()
        tasks: Tally[tuple[str, str]] = Tally()
        try:
            found = [self._connect.status(name) for name in self._connect.names()]
        except HeadraceError:
            return  # the log is not read yet
        for status in found:
            connectors[status.type, status.connector.state] += 1
            for task in status.tasks:
                tasks[status.type, task.state] += 1
        yield _gauge("connectors", "Connectors by type and state.", ("type", "state"), connectors)
        yield _gauge("tasks", "Tasks by type and state.", ("type", "state"), tasks)

    def _of_the_worker(self) -> Iterator[Metric]:
        now = self._connect.worker.statistics()
        copies = {(kind, phase.value): count for (kind, phase), count in now.copies.items()}
        yield _gauge("units", "Copies on this worker, not gone yet.", ("kind", "phase"), copies)
        counts = {
            "units_launched": ("Copies that were started.", now.launched),
            "units_forced": ("Copies that had to be killed.", now.forced),
            "units_failed": ("Copies that ended in Error.", now.failed),
            "units_restarted": ("Restarts by the worker itself.", now.restarted),
            "passes": ("Passes over all units.", now.passes),
        }
        for name, (says, count) in counts.items():
            yield CounterMetricFamily(f"{_PREFIX}_{name}", says, value=count)
        up = 1 if now.state == "running" and self._connect.worker.trouble() is None else 0
        figures = {
            "up": ("Whether the worker can do its work.", up),
            "log_position": ("Position in the log.", now.log_position),
            "log_unwritten": ("States that wait to be written.", now.unwritten),
        }
        for name, (says, figure) in figures.items():
            yield GaugeMetricFamily(f"{_PREFIX}_{name}", says, value=figure)

    def _of_the_tasks(self) -> Iterator[Metric]:
        """Return what the tasks on this worker have moved, as the data plane tells."""
        labels = ("connector", "task")
        # What has ended is told of by the worker that runs its successor.
        units = [unit for unit in self._connect.units() if unit.pid_alive]
        found = [(_labels(unit), unit.figures) for unit in units if unit.figures is not None]
        for name, says in _MOVED.items():
            family = CounterMetricFamily(f"{_PREFIX}_task_{name}", says, labels=labels)
            for of, figures in found:
                family.add_metric(of, getattr(figures, name))
            yield family
        lags = GaugeMetricFamily(f"{_PREFIX}_task_lag", _LAG, labels=labels)
        for of, figures in found:
            if figures.lag is not None:
                lags.add_metric(of, figures.lag)
        yield lags
        waits = GaugeMetricFamily(f"{_PREFIX}_task_waits", _WAITS, labels=labels)
        for unit in units:
            if unit.task is not None:
                waits.add_metric(_labels(unit), bool(unit.waits_for))
        yield waits

    def _of_the_errors(self) -> Iterator[Metric]:
        """Return what has failed in the tasks on this worker, even in one that ended by it."""
        labels = ("connector", "task")
        units = [one for one in self._connect.units() if one.pid_alive or self._has_failed(one)]
        newest = {_labels(one): one for one in sorted(units, key=lambda one: one.generation)}
        found = [(of, unit.errors) for of, unit in newest.items() if unit.errors is not None]
        for name, says in _ERRORS.items():
            known = name.removeprefix("total-").replace("-", "_")
            family = CounterMetricFamily(f"{_PREFIX}_task_{known}", says, labels=labels)
            for of, errors in found:
                family.add_metric(of, errors.get(name, 0))
            yield family
        says = "When a record failed for good last, in seconds since 1970."
        name = f"{_PREFIX}_task_last_error_timestamp_seconds"
        times = GaugeMetricFamily(name, says, labels=labels)
        for of, errors in found:
            if at := errors.get(_LAST_ERROR):
                times.add_metric(of, at / 1000)
        yield times

    def _has_failed(self, unit: UnitReport) -> bool:
        """Return whether a unit has failed that is wanted and assigned to this worker."""
        worker = self._connect.worker
        wanted = worker.view.connector(unit.connector) is not None
        here = worker.worker_of(unit.connector, unit.task) == worker.name
        return unit.phase == "ERROR" and wanted and here


def _labels(unit: UnitReport) -> tuple[str, str]:
    return unit.connector, str(unit.task)


def _gauge(
    name: str, says: str, labels: tuple[str, str], counts: dict[tuple[str, str], int]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"{_PREFIX}_{name}", says, labels=labels)
    for values, count in sorted(counts.items()):
        family.add_metric(values, count)
    return family


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
        Takes note of who may not call.
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
