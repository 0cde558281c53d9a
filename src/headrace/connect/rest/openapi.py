"""The API's description for tools, made from the table of routes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.connect.rest.guard import OPEN_PATHS

if TYPE_CHECKING:
    from headrace.connect.rest.operations import Operation, Parameter

__all__ = ["description"]

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
