"""A request as handlers see it, and their answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from headrace.errors import ConnectNotFoundError, ConnectRequestError

if TYPE_CHECKING:
    from starlette.requests import Request

    from headrace.connect.worker import Connect

__all__ = ["Answer", "Call"]

#: A config may have 4 MiB; JSON escapes may take more.
_LARGEST_BODY = 8 << 20

_TRUTH = {"true": True, "false": False}

# A number with a fraction keeps its digits: configs are text.
_DECODER = msgspec.json.Decoder(float_hook=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a handler answers: a status, and a value that becomes JSON."""

    status: int = 200
    #: None: no body.
    value: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    def response(self) -> Response:
        """Make the HTTP response."""
        if self.value is None:
            return Response(status_code=self.status, headers=self.headers)
        return Response(
            msgspec.json.encode(self.value),
            status_code=self.status,
            headers=self.headers,
            media_type="application/json",
        )


class Call:
    """A request: its path, its query, its body, and the worker that it is for.

    Parameters
    ----------
    request
        The HTTP request.
    connect
        What answers it.
    """

    def __init__(self, request: Request, connect: Connect) -> None:
        self.request = request
        self.connect = connect

    def path(self, part: str) -> str:
        """A part of the path by its name, decoded."""
        return str(self.request.path_params[part])

    @property
    def connector(self) -> str:
        """The connector that the path names."""
        return self.path("connector")

    @property
    def task(self) -> int:
        """The number of the task that the path names.

        Raises
        ------
        ConnectNotFoundError
            It is no number.
        """
        text = self.path("task")
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise ConnectNotFoundError(f"HTTP 404 Not Found: '{text}' is not the number of a task")
        return int(text)

    def flag(self, name: str) -> bool:
        """A truth of the query in any case, false where it is not given.

        Raises
        ------
        ConnectRequestError
            It is neither true nor false.
        """
        text = self.request.query_params.get(name, "false")
        found = _TRUTH.get(text.strip().lower())
        if found is None:
            raise ConnectRequestError(f"the parameter {name} is '{text}'", hint="use true or false")
        return found

    def choices(self, name: str, *known: str) -> set[str]:
        """All values of a parameter that may be given more than once.

        Raises
        ------
        ConnectRequestError
            One of them is not known.
        """
        given = set(self.request.query_params.getlist(name))
        if unknown := sorted(given.difference(known)):
            raise ConnectRequestError(
                f"the parameter {name} is '{unknown[0]}'", hint=f"use {' or '.join(known)}"
            )
        return given

    async def object(self) -> dict[str, Any]:
        """The body, which must be a JSON object.

        Raises
        ------
        ConnectRequestError
            There is none, or it is something else.
        """
        body = await self._body()
        if not body.strip():
            raise ConnectRequestError("the request has no body", hint="send a JSON object")
        self._check_media_type()
        try:
            value = _DECODER.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConnectRequestError(f"the body is not JSON: {error}") from None
        except RecursionError:
            raise ConnectRequestError("the body is nested too deep") from None
        if not isinstance(value, dict):
            kind = "null" if value is None else type(value).__name__
            raise ConnectRequestError(f"the body is of type {kind}", hint="send a JSON object")
        return value

    def _check_media_type(self) -> None:
        given = self.request.headers.get("content-type", "")
        kind = given.partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            said = f"'{kind}'" if kind else "of no type"
            message = (
                f"HTTP 415 Unsupported Media Type: the body is {said}, not JSON\n"
                "  → send Content-Type: application/json"
            )
            raise HTTPException(415, message)

    async def _body(self) -> bytes:
        parts = bytearray()
        async for part in self.request.stream():
            parts += part
            if len(parts) > _LARGEST_BODY:
                raise HTTPException(413, f"the body is longer than {_LARGEST_BODY >> 20} MiB")
        return bytes(parts)
