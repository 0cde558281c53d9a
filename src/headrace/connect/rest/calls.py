"""A request as handlers see it, and their answers."""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response

from headrace.errors import ConnectNotFoundError, ConnectRequestError
from headrace.private import is_loopback
from headrace.quiet_log import QuietLog

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from headrace.connect.worker import Connect


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


class RestCall:
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
        """Return a part of the path by its name, decoded."""
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
            It is not a number.
        """
        text = self.path("task")
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise ConnectNotFoundError(f"HTTP 404 Not Found: '{text}' is not the number of a task")
        return int(text)

    def flag(self, name: str) -> bool:
        """Return a truth of the query in any case, false where it is not given.

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
        """Return all values of a parameter that may be given more than once.

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
        """Return the body, which must be a JSON object.

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


# Who may call: who brings the token, or, where none is set, who is on this machine and means it.

_quiet = QuietLog(logging.getLogger(__name__))

OPEN_PATHS = frozenset({"/health", "/livez", "/readyz"})
"""Probes of an orchestrator have no token, and learn nothing but that the worker is there."""


Handler = Callable[[RestCall], Awaitable[Answer]]
"""Answers a request."""

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a query."""

    name: str
    says: str
    #: What it may be; a truth where nothing is named.
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    method: Method
    path: str
    handle: Handler
    #: The type of the answer's value, and its status when all is well.
    value: Any = None
    _: KW_ONLY
    status: int = 200
    #: Shape of the body that it wants, as a JSON schema.
    body: dict[str, Any] | None = None
    query: tuple[Parameter, ...] = ()
    #: Statuses of other answers that bring the value, where they bring anything.
    also: tuple[int, ...] = ()
    #: Statuses of errors.
    errors: tuple[int, ...] = ()

    @property
    def says(self) -> str:
        """What it does, in a sentence."""
        return (self.handle.__doc__ or "").strip()


class RefusedRequests:
    """Counts what was refused before anything looked at it, by reason, and logs some of it.

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


# The API's description, made from the table of routes: for tools, and as a page for people.
#
# ``python -m headrace.connect.rest`` prints the page ``docs/reference/connect-openapi.md``.

_REF = "#/components/schemas/{name}"
_ERROR_REF = {"$ref": _REF.format(name="Error")}
_PART = re.compile(r"{(\w+)}")
_EMPTY = {HTTPStatus.NO_CONTENT}
_ERROR = {
    "type": "object",
    "required": ["error_code", "message"],
    "properties": {"error_code": {"type": "integer"}, "message": {"type": "string"}},
}
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "basic": {"type": "http", "scheme": "basic", "description": "The token is the password."},
}
_HEADERS = {
    HTTPStatus.CREATED: ("Location", "Path of the connector."),
    HTTPStatus.UNAUTHORIZED: ("WWW-Authenticate", "How to bring the token."),
    HTTPStatus.SERVICE_UNAVAILABLE: ("Retry-After", "Seconds after which to try again."),
}


def description(operations: Iterable[Operation], *, secured: bool = False) -> dict[str, Any]:
    """Describe operations as OpenAPI 3.1 does.

    Parameters
    ----------
    operations
        What there is.
    secured
        Whether requests must bring a token.
    """
    operations = list(operations)
    values = [one.value for one in operations if one.value is not None]
    schemas, parts = msgspec.json.schema_components(values, ref_template=_REF)
    by_value = dict(
        zip([id(one) for one in operations if one.value is not None], schemas, strict=True)
    )
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        described = _operation(one, by_value.get(id(one)))
        if made := described["responses"].get("201"):
            made["links"] = _links(operations)
        if secured:
            _secure(one, described)
        paths.setdefault(one.path, {})[one.method.lower()] = described
    components: dict[str, Any] = {"schemas": {**parts, "Error": _ERROR}}
    if secured:
        components["securitySchemes"] = _SCHEMES
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace Connect",
            "version": "1",
            "description": "Kafka Connect's REST API, and what Headrace adds to it.",
        },
        "paths": paths,
        "components": components,
    }


def _secure(one: Operation, described: dict[str, Any]) -> None:
    if one.path in OPEN_PATHS:
        described["security"] = []
        return
    described["security"] = [{name: []} for name in _SCHEMES]
    described["responses"]["401"] = _response(HTTPStatus.UNAUTHORIZED, _ERROR_REF)


def _operation(one: Operation, schema: dict[str, Any] | None) -> dict[str, Any]:
    responses = {str(status): _response(status, schema) for status in (one.status, *one.also)}
    responses |= {str(status): _response(status, _ERROR_REF) for status in one.errors}
    described: dict[str, Any] = {
        "summary": one.says,
        "operationId": _id(one),
        "parameters": [*_of_path(one.path), *map(_of_query, one.query)],
        "responses": responses,
    }
    if one.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": one.body}},
        }
    return described


def _id(one: Operation) -> str:
    return f"{one.method.lower()}{re.sub('[^a-z]+', '-', one.path)}".rstrip("-")


def _links(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the links to what can be asked of a connector that was made."""
    return {
        _id(one): {
            "operationId": _id(one),
            "parameters": {"connector": "$response.body#/name"},
        }
        for one in operations
        if _PART.findall(one.path) == ["connector"]
    }


def _of_path(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PART.findall(path)
    ]


def _of_query(one: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "boolean", "default": False}
    if one.choices:
        schema = {"type": "string"}
        if all(one.choices):
            schema = {"type": "array", "items": {"type": "string", "enum": list(one.choices)}}
    return {
        "name": one.name,
        "in": "query",
        "required": False,
        "description": one.says,
        "schema": schema,
    }


def _response(status: int, schema: dict[str, Any] | None) -> dict[str, Any]:
    response: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if status not in _EMPTY and schema is not None:
        response["content"] = {"application/json": {"schema": schema}}
    if status in _HEADERS:
        name, says = _HEADERS[HTTPStatus(status)]
        response["headers"] = {name: {"description": says, "schema": {"type": "string"}}}
    return response


_INTRODUCTION = """\
# The operations of REST

Made by `python -m headrace.connect.rest`; a test fails when this page is out of date.

A worker gives the same at `GET /openapi.json` as OpenAPI 3.1, for generators of clients and for tools that send requests.
[Connect over REST](connect-rest.md) says what the requests are for.
Each error has a body of the form [Error](#error).
Beside these there is `GET /metrics`, in the format of Prometheus.
"""


def page(described: Mapping[str, Any]) -> str:
    """Write a description down in Markdown.

    Parameters
    ----------
    described
        What `description` has made.
    """
    lines = [*_INTRODUCTION.splitlines(), "", "## Operations", ""]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            lines += _lines_of(f"{method.upper()} {path}", operation)
    lines += ["## Bodies", ""]
    for name, schema in sorted(described["components"]["schemas"].items()):
        lines += [f"### {name}", "", *_fields(schema), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _lines_of(title: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"### `{title}`", "", operation["summary"].replace("``", "`"), "")
    if query := [one for one in operation["parameters"] if one["in"] == "query"]:
        yield from ("| parameter | value | |", "| --- | --- | --- |")
        for one in query:
            yield f"| `{one['name']}` | {_kind(one['schema'])} | {one['description']} |"
        yield ""
    if body := operation.get("requestBody"):
        yield from ("It takes a body:", "")
        yield from _fields(body["content"]["application/json"]["schema"])
        yield ""
    yield from ("| status | | body |", "| --- | --- | --- |")
    for status, response in operation["responses"].items():
        schema = response.get("content", {}).get("application/json", {}).get("schema")
        kind = "none" if schema is None else _kind(schema)
        yield f"| {status} | {response['description']} | {kind} |"
    yield ""


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    yield from ("| field | value | |", "| --- | --- | --- |")
    for name, kind in schema.get("properties", {}).items():
        yield f"| `{name}` | {_kind(kind)} | {'' if name in required else 'may be left out'} |"
    if isinstance(rest := schema.get("additionalProperties"), dict):
        yield f"| any other | {_kind(rest)} | |"


def _kind(schema: Mapping[str, Any]) -> str:
    """Return a name for what a schema describes.

    >>> _kind({"type": "array", "items": {"type": "string"}})
    'list of string'
    >>> _kind({"anyOf": [{"type": "integer"}, {"type": "null"}]})
    'integer or null'
    """
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(one) for one in schema["anyOf"]))
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if kind == "object" and isinstance(rest := schema.get("additionalProperties"), dict):
        return f"object of {_kind(rest)}"
    return kind if isinstance(kind, str) else " or ".join(kind)
