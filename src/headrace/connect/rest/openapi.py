"""The API's description for tools, made from the table of routes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from headrace.connect.rest.operations import Operation, Parameter

__all__ = ["description"]

_REF = "#/components/schemas/{name}"
_ERROR = {
    "type": "object",
    "required": ["error_code", "message"],
    "properties": {"error_code": {"type": "integer"}, "message": {"type": "string"}},
}
_UNNAMED = (200, 201, 202, 204)


def description(operations: Iterable[Operation]) -> dict[str, Any]:
    """Describe operations as OpenAPI 3.1 does."""
    operations = list(operations)
    values = [one.value for one in operations if one.value is not None]
    schemas, parts = msgspec.json.schema_components(values, ref_template=_REF)
    by_value = dict(
        zip([id(one) for one in operations if one.value is not None], schemas, strict=True)
    )
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, by_value.get(id(one)))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace Connect",
            "version": "1",
            "description": "Kafka Connect's REST API, and what Headrace adds to it.",
        },
        "paths": paths,
        "components": {"schemas": {**parts, "Error": _ERROR}},
    }


def _operation(one: Operation, schema: dict[str, Any] | None) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": one.says,
        "operationId": f"{one.method.lower()}{re.sub('[^a-z]+', '-', one.path)}".rstrip("-"),
        "parameters": [*_of_path(one.path), *map(_of_query, one.query)],
        "responses": {
            str(status): _response(status, schema) for status in (one.status, *one.others)
        },
    }
    if one.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": one.body}},
        }
    return described


def _of_path(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
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
    if status >= HTTPStatus.BAD_REQUEST:
        schema = {"$ref": _REF.format(name="Error")} if status != 503 or not schema else None
    if status != HTTPStatus.NO_CONTENT and schema is not None:
        response["content"] = {"application/json": {"schema": schema}}
    return response
