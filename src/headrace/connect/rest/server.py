"""The HTTP server of a worker, in the worker's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.connect.rest.app import make_app, make_waiting_app
from headrace.connect.rest.calls import RefusedRequests
from headrace.connect.worker.reporting import Startup
from headrace.errors import ConfigurationError
from headrace.watched import OnFailure, watched_task

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from headrace.connect.worker import Connect, WorkerSettings


logger = logging.getLogger(__name__)

#: What the protocol warns of is what clients send: it is counted, and told of by the refusals.
_faults = logging.getLogger(f"{__name__}.faults")
_faults.setLevel(logging.ERROR)

#: Answers that are on their way may end before the server does.
_GRACE = 1


class _Server(uvicorn.Server):
    """A server that leaves signals to the worker."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Bounded(H11Protocol):
    """A connection, of which there are not too many; its requests come whole within a time."""

    most: int
    seconds: float
    refusals: RefusedRequests
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.logger = _faults
        if len(self.connections) > self.most:
            self._refuse("connections", f"there are {self.most} already, which is max_connections")
            transport.abort()
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._rest()

    def _watch(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._rest()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self._end)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        self._refuse("time", f"it did not come whole in {self.seconds:g} s")
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        self._refuse("malformed", msg)
        super().send_400_response(msg)

    def _refuse(self, reason: str, message: str) -> None:
        client = "?" if self.client is None else self.client[0]
        self.refusals.note(reason, client, message)


class RestServer:
    """Serves the REST API until it is left; while there is no worker, it says why.

    Parameters
    ----------
    settings
        Say where to listen, and whether to speak TLS.
    startup
        What is done until there is a worker.

    Raises
    ------
    ConfigurationError
        The port is taken, or the certificate cannot be used.
    """

    def __init__(self, settings: WorkerSettings, startup: Startup | None = None) -> None:
        self._settings = settings
        self.startup = Startup(settings.name) if startup is None else startup
        self._refusals = RefusedRequests()
        self._app = self._waiting = make_waiting_app(settings, self.startup, self._refusals)
        #: Told of the error that has ended it.
        self.on_failure: OnFailure = lambda _error: None
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._server: _Server | None = None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._socket is not None
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """Where clients find it."""
        settings = self._settings
        scheme = "https" if settings.tls_certificate is not None else "http"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        return f"{scheme}://{host}:{self.port}"

    def serve(self, connect: Connect) -> None:
        """Answer requests with a worker from now on."""
        self._app = make_app(connect, self._refusals)

    def rest(self) -> None:
        """Stop asking the worker, as what it needs is about to end."""
        self.startup.end()
        self._app = self._waiting

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def __aenter__(self) -> Self:
        """Listen; return when requests are answered."""
        self._socket = self._bind()
        self._server = _Server(self._config())
        self._task = watched_task(
            self._server.serve([self._socket]), name="connect-rest", on_failure=self._fail
        )
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise ConfigurationError("the REST server ended before it had begun")
            await asyncio.sleep(0.005)
        logger.info("REST answers at %s", self.url)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Answer the requests that are under way, and end."""
        assert self._server is not None
        assert self._task is not None
        self._server.should_exit = True
        await asyncio.gather(self._task, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()

    def _fail(self, error: BaseException) -> None:
        self.on_failure(error)

    def _bind(self) -> socket.socket:
        settings = self._settings
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Its connections are like it: without, the end of an answer waits 40 ms for its beginning.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            listening.bind((settings.host, settings.port))
        except OSError as error:
            listening.close()
            raise ConfigurationError(
                f"REST cannot listen on {settings.host}:{settings.port}: {error.strerror}",
                hint="choose another port, or 0 for a free one",
            ) from error
        return listening

    def _config(self) -> uvicorn.Config:
        settings = self._settings
        bounds = {
            "most": settings.max_connections,
            "seconds": settings.request_time.total_seconds(),
            "refusals": self._refusals,
        }
        try:
            config = uvicorn.Config(
                self._answer,
                interface="asgi3",
                log_config=None,
                access_log=False,
                lifespan="off",
                http=type("Bounded", (_Bounded,), bounds),
                ws="none",
                limit_concurrency=settings.max_connections,
                server_header=False,
                timeout_graceful_shutdown=_GRACE,
                ssl_certfile=settings.tls_certificate,
                ssl_keyfile=settings.tls_key,
            )
            config.load()
        except OSError as error:
            raise ConfigurationError(
                f"the certificate {settings.tls_certificate} cannot be used: {error}",
                hint="give PEM files as tls_certificate and tls_key",
            ) from error
        return config
