"""The small web server of the source."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition
from typing import TYPE_CHECKING, Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.errors import ConnectorConfigError
from headrace.watched import watched_thread

if TYPE_CHECKING:
    from headrace.connect import Secret


# What requests brought and is not committed yet, and who waits for it.

_REMEMBERED = 10_000


class InboxFullError(Exception):
    """As much waits for its commit as may."""


@dataclass(slots=True, kw_only=True)
class Arrival:
    """The records of one request."""

    values: Sequence[Any]
    key: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    #: What the client calls the request, so that it can send it again.
    name: str | None = None
    #: Number of the last record.
    last: int = 0
    committed: bool = False
    #: Those who wait, each with its loop.
    waiting: list[asyncio.Future[bool]] = field(default_factory=list)


class Inbox:
    """Hands requests from the server's thread to the task's, and commits back.

    Parameters
    ----------
    number
        Number of the last record that was committed before.
    most
        Records that may wait for their commit.
    """

    def __init__(self, number: int, most: int) -> None:
        self._number = number
        self._most = most
        self._pending = 0
        self._fresh: deque[Arrival] = deque()
        self._given: deque[Arrival] = deque()
        self._named: OrderedDict[str, Arrival] = OrderedDict()
        self._changed = Condition()
        self._closed = False
        #: Why nothing more can be taken.
        self.failure: BaseException | None = None

    def offer(self, arrival: Arrival) -> asyncio.Future[bool]:
        """Take a request; the future tells whether it was committed.

        Caller: the server's loop.  A request whose name is known joins the one before it.

        Raises
        ------
        InboxFullError
            When too much waits already.
        """
        waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        with self._changed:
            known = self._named.get(arrival.name) if arrival.name else None
            if known is not None and known.committed:
                waiting.set_result(True)
                return waiting
            if known is None:
                self._add(arrival)
            (known or arrival).waiting.append(waiting)
            self._changed.notify_all()
        return waiting

    def take(self, most: int, timeout: float) -> list[Arrival]:
        """Return requests in the order in which they came; whole ones, one at least."""
        with self._changed:
            if not self._fresh:
                self._changed.wait(timeout)
            taken: list[Arrival] = []
            while self._fresh and (not taken or most >= len(self._fresh[0].values)):
                arrival = self._fresh.popleft()
                most -= len(arrival.values)
                taken.append(arrival)
            self._given += taken
            return taken

    def commit(self, number: int) -> None:
        """Answer those whose last record has this number at most."""
        with self._changed:
            while self._given and self._given[0].last <= number:
                arrival = self._given.popleft()
                arrival.committed = True
                self._pending -= len(arrival.values)
                answer(arrival, committed=True)

    def close(self) -> None:
        """Answer all who still wait that their requests were not committed."""
        with self._changed:
            self._closed = True
            for arrival in (*self._given, *self._fresh):
                answer(arrival, committed=False)
            self._given.clear()
            self._fresh.clear()
            self._changed.notify_all()

    def _add(self, arrival: Arrival) -> None:
        # A single request larger than the bound passes when nothing else waits.
        full = self._pending and self._pending + len(arrival.values) > self._most
        if self._closed or full:
            raise InboxFullError
        self._number += len(arrival.values)
        arrival.last = self._number
        self._count(arrival)
        self._accept(arrival)

    def _accept(self, arrival: Arrival) -> None:
        self._fresh.append(arrival)

    def _count(self, arrival: Arrival) -> None:
        self._pending += len(arrival.values)
        if arrival.name:
            self._named[arrival.name] = arrival
            if len(self._named) > _REMEMBERED:
                self._named.popitem(last=False)


def answer(arrival: Arrival, *, committed: bool) -> None:
    """Tell all who wait for a request what came of it."""
    for future in arrival.waiting:
        loop = future.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, future, committed)
    arrival.waiting.clear()


def _resolve(future: asyncio.Future[bool], committed: bool) -> None:  # noqa: FBT001  a callback
    if not future.done():
        future.set_result(committed)


_PATIENCE = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What requests must be, and how they become records."""

    path: str
    token: Secret | None
    signature: Secret | None
    signature_header: str
    most_bytes: int
    form: str
    split: str
    key_header: str | None
    headers: Sequence[str]
    timeout: float


class Server:
    """Takes requests in a thread of its own, and answers those that are committed.

    Parameters
    ----------
    host, port
        Where it listens; port 0 takes a free one.
    tls
        Files of certificate and key, or ``None``.
    """

    def __init__(
        self, inbox: Inbox, rules: Rules, host: str, port: int, tls: tuple[Path, Path] | None
    ) -> None:
        self._inbox = inbox
        self._rules = rules
        # Bound here, so that a port that is taken fails the task's start with the reason.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, reuse_port=False)
        # Its connections are like it: without, the end of an answer waits 40 ms for its beginning.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: int = self._socket.getsockname()[1]
        routes = [Route(rules.path, self._take, methods=["POST", "PUT"])]
        app = Starlette(routes=routes, exception_handlers={HTTPException: _refuse})
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            ssl_certfile=tls[0] if tls else None,
            ssl_keyfile=tls[1] if tls else None,
        )
        self._load(config)
        self._server = uvicorn.Server(config)
        #: Why it takes no more requests.
        self.failure: BaseException | None = None
        self._thread = watched_thread(self._serve, name="http-source", on_failure=self._fail)
        self._thread.start()

    def _load(self, config: uvicorn.Config) -> None:
        try:
            config.load()
        except OSError as error:  # of TLS, too: there is no other file to load
            self._socket.close()
            message = f"The files of tls.cert and tls.key cannot be used: {error}"
            hint = "Name a certificate and its key, both in PEM."
            raise ConnectorConfigError(message, hint=hint) from error

    @property
    def alive(self) -> bool:
        """Whether it still listens."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Take no more requests."""
        self._server.should_exit = True
        self._thread.join(_PATIENCE)
        self._socket.close()

    def _fail(self, error: BaseException) -> None:
        self.failure = error

    def _serve(self) -> None:
        asyncio.run(self._server.serve([self._socket]))

    async def _take(self, request: Request) -> Response:
        body = await self._body(request)
        self._check(request, body)
        arrival = Arrival(
            values=self._values(body),
            key=request.headers.get(self._rules.key_header) if self._rules.key_header else None,
            headers=tuple(
                (name, request.headers[name])
                for name in self._rules.headers
                if name in request.headers
            ),
            name=request.headers.get("idempotency-key"),
        )
        if not arrival.values:
            return JSONResponse({"records": 0})
        try:
            committed = self._inbox.offer(arrival)
            done = await asyncio.wait_for(asyncio.shield(committed), self._rules.timeout)
        except InboxFullError:
            raise _later("Too many records wait for their commit.") from None
        except TimeoutError:
            raise _later("The records are not committed yet.") from None
        if not done:
            raise _later("The connector stopped before the records were committed.")
        return JSONResponse({"records": len(arrival.values)})

    async def _body(self, request: Request) -> bytes:
        parts, size = [], 0
        try:
            async for part in request.stream():
                size += len(part)
                if size > self._rules.most_bytes:
                    message = f"The body is larger than {self._rules.most_bytes} bytes."
                    raise HTTPException(413, message)
                parts.append(part)
        except ClientDisconnect:
            raise HTTPException(400, "The body is not complete.") from None
        return b"".join(parts)

    def _check(self, request: Request, body: bytes) -> None:
        if token := self._rules.token:
            given = request.headers.get("authorization", "").encode()
            if not hmac.compare_digest(given, f"Bearer {token.reveal()}".encode()):
                headers = {"WWW-Authenticate": "Bearer"}
                raise HTTPException(401, "The bearer token is missing or wrong.", headers)
        if secret := self._rules.signature:
            given = request.headers.get(self._rules.signature_header, "").encode()
            made = hmac.new(secret.reveal().encode(), body, hashlib.sha256).hexdigest().encode()
            if not hmac.compare_digest(given.removeprefix(b"sha256="), made):
                message = f"The signature in {self._rules.signature_header} is missing or wrong."
                raise HTTPException(401, message)

    def _values(self, body: bytes) -> list[Any]:
        if self._rules.split == "lines":
            return [_READERS[self._rules.form](line) for line in body.splitlines() if line.strip()]
        value = _READERS[self._rules.form](body)
        if self._rules.split != "array":
            return [value]
        if not isinstance(value, list):
            raise HTTPException(400, "The body is no JSON array.")
        return value


def _json(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"The body is no JSON: {error}.") from None


def _text(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise HTTPException(400, f"The body is no UTF-8: {error}.") from None


_READERS: dict[str, Callable[[bytes], Any]] = {"json": _json, "text": _text, "bytes": bytes}


def _later(message: str) -> HTTPException:
    return HTTPException(503, f"{message} Send them again.", {"Retry-After": "1"})


async def _refuse(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, HTTPException)
    content = {"error_code": error.status_code, "message": error.detail}
    return JSONResponse(content, error.status_code, error.headers)
