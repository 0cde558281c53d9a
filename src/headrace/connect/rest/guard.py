"""Who may call: who brings the token, or, where none is set, who is on this machine and means it."""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
from collections import Counter
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from headrace.connect.rest.calls import Answer
from headrace.private import is_loopback
from headrace.quiet_log import QuietLog

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["OPEN_PATHS", "HostGuard", "RefusedRequests", "TokenGuard"]

_quiet = QuietLog(logging.getLogger(__name__))

OPEN_PATHS = frozenset({"/health", "/livez", "/readyz"})
"""Probes of an orchestrator have no token, and learn nothing but that the worker is there."""


class RefusedRequests:
    """Counts what was refused before anything looked at it, by reason, and tells of some.

    Reasons are ``host`` and ``token`` of the guards, and of the server ``connections`` (too many),
    ``time`` (a request did not come whole) and ``malformed`` (it is not HTTP).
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def note(self, reason: str, client: object, message: str) -> None:
        """Take note of one."""
        self.counts[reason] += 1
        # A kind of line for each reason: one does not hide the others.
        _quiet.warning(f"refused a request ({reason}) of %s: %s", client, message)


class HostGuard:
    """Lets requests pass that were meant for this machine by a name that only it can have.

    A page of the web can have a browser ask an address of this machine under a name of its own, and
    read the answer; it cannot change what the browser says in ``Host``.

    Parameters
    ----------
    app
        What is guarded.
    refusals
        Takes note of who is refused.
    """

    def __init__(self, app: ASGIApp, refusals: RefusedRequests) -> None:
        self._app = app
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        named = Headers(scope=scope).getlist("host")
        if len(named) == 1 and is_loopback(_without_port(named[0])):
            await self._app(scope, receive, send)
            return
        message = f"without a token this worker answers to loopback names only, not to {named}"
        message = message[:500]
        self._refusals.note("host", _client(scope), message)
        value = {"error_code": 403, "message": message}
        await Answer(status=403, value=value).response()(scope, receive, send)


def _client(scope: Scope) -> str:
    return str((scope.get("client") or "?")[0])


def _without_port(host: str) -> str:
    """Take the port off an address.

    >>> [_without_port(text) for text in ("localhost:80", "[::1]:80", "[::1]", "a.b", "::1")]
    ['localhost', '::1', '::1', 'a.b', '::1']
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, _ = host.rpartition(":")
    return name if colon and ":" not in name else host


class TokenGuard:
    """Lets requests pass that bring the token, as a bearer or as the password of basic access.

    Parameters
    ----------
    app
        What is guarded.
    token
        The token.
    refusals
        Takes note of who is refused.
    """

    def __init__(self, app: ASGIApp, token: str, refusals: RefusedRequests) -> None:
        self._app = app
        self._refusals = refusals
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401."""
        if (
            scope["type"] != "http"
            or scope["path"] in OPEN_PATHS
            or self._knows(Headers(scope=scope))
        ):
            await self._app(scope, receive, send)
            return
        message = "the request brings no token that is known here"
        self._refusals.note("token", _client(scope), message)
        value = {"error_code": 401, "message": message}
        headers = {"WWW-Authenticate": 'Bearer realm="headrace", Basic realm="headrace"'}
        answer = Answer(status=401, value=value, headers=headers)
        await answer.response()(scope, receive, send)

    def _knows(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given = given.strip()
        if scheme.lower() == "bearer":
            return hmac.compare_digest(given.encode(), self._token)
        if scheme.lower() != "basic":
            return False
        try:
            _, _, password = base64.b64decode(given, validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return False
        return hmac.compare_digest(password, self._token)
