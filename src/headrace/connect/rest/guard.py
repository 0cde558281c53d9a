"""Who may call: a token, where one is set."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from headrace.connect.rest.calls import Answer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["OPEN_PATHS", "TokenGuard"]

OPEN_PATHS = frozenset({"/health"})
"""Probes of an orchestrator have no token, and learn nothing but that the worker is there."""


class TokenGuard:
    """Lets requests pass that bring the token, as a bearer or as the password of basic access.

    Parameters
    ----------
    app
        What is guarded.
    token
        The token.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
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
        value = {"error_code": 401, "message": "the request brings no token that is known here"}
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
