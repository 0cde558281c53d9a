"""The API's description, made from the table of routes: for tools, and as a page for people.

``python -m headrace.connect.rest`` prints the page ``docs/connect-openapi.md``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.connect.rest.calls import OPEN_PATHS

if TYPE_CHECKING:
    from headrace.connect.rest.operations import Operation, Parameter

__all__ = ["description", "page"]

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
    """Say what can be asked of a connector that was made."""
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
    """Name what a schema is of.

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
