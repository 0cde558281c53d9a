"""The table of routes: every operation once, with what its description needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from headrace.connect.rest import admin, connectors, plugins
from headrace.connect.rest.calls import Answer, RestCall
from headrace.connect.worker.reporting import (
    ConnectorInfo,
    ConnectorStatus,
    Health,
    LogEntry,
    PluginInfo,
    TaskInfo,
    TaskStatus,
    UnitReport,
    WorkerInfo,
)

__all__ = ["OPERATIONS", "Handler", "Operation", "Parameter"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    method: Method
    path: str
    handle: Handler
    #: Status of the answer when all is well, and the type of its value.
    status: int = 200
    value: Any = None
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


_FORCE = Parameter("force", "Kill the processes without asking them first.")
_KEEP = Parameter("keepOffsets", "Let a connector that gets its name later go on where it was.")
_EXPAND = Parameter("expand", "What to tell of each connector.", ("info", "status"))
_TASKS = Parameter("includeTasks", "Restart the tasks too.")
_FAILED = Parameter("onlyFailed", "Restart only what has failed.")
_CONNECTORS = Parameter("connectorsOnly", "List connectors only, which is the default.")
_SCOPE = Parameter("scope", "Where to set the level.", ("worker", "cluster"))
_KEY = Parameter("key", "The one key to tell of, such as connector-orders.", ("",))

_NAME = {
    "type": "string",
    "minLength": 1,
    "maxLength": 200,
    "pattern": r"""^[^/\\%?#;"<>|{}\x00-\x1f]+$""",
}
_EXAMPLE = {"connector.class": "datagen-source", "topic": "orders", "tasks.max": "2"}
_CONFIG = {
    "type": "object",
    "examples": [_EXAMPLE],
    "required": ["connector.class"],
    "properties": {"connector.class": {"type": "string", "minLength": 1}},
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}
_CHECKED = {key: value for key, value in _CONFIG.items() if key != "required"}
_PATCH = {
    "type": "object",
    "examples": [{"tasks.max": "4", "transforms": None}],
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}
_CREATE = {
    "type": "object",
    "examples": [{"name": "orders", "config": _EXAMPLE, "initial_state": "RUNNING"}],
    "required": ["name", "config"],
    "additionalProperties": False,
    "properties": {
        "name": _NAME,
        "config": _CONFIG,
        "initial_state": {"type": "string", "enum": ["RUNNING", "PAUSED", "STOPPED"]},
    },
}
_OFFSETS = {
    "type": "object",
    "required": ["offsets"],
    "additionalProperties": False,
    "properties": {
        "offsets": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["partition", "offset"],
                "properties": {
                    "partition": {"type": "object"},
                    "offset": {"type": ["object", "null"]},
                },
            },
        }
    },
}
_LEVEL = {
    "type": "object",
    "examples": [{"level": "DEBUG"}],
    "required": ["level"],
    "additionalProperties": False,
    "properties": {"level": {"type": "string"}},
}

_ONE = "/connectors/{connector}"
_TASK = "/connectors/{connector}/tasks/{task}"
_PLUGIN = "/connector-plugins/{plugin}"

#: The API, in the order of its description.
OPERATIONS: tuple[Operation, ...] = (
    Operation(method="GET", path="/", handle=admin.root, value=WorkerInfo),
    Operation(method="GET", path="/health", handle=admin.health, value=Health, also=(500, 503)),
    Operation(method="GET", path="/livez", handle=admin.life, value=Health, also=(500,)),
    Operation(method="GET", path="/readyz", handle=admin.readiness, value=Health, also=(503,)),
    Operation(
        method="GET",
        path="/connectors",
        handle=connectors.list_all,
        value=list[str] | dict[str, dict[str, Any]],
        query=(_EXPAND,),
        errors=(400, 503),
    ),
    Operation(
        method="POST",
        path="/connectors",
        handle=connectors.create,
        status=201,
        value=ConnectorInfo,
        body=_CREATE,
        errors=(400, 409, 413, 415, 500, 503),
    ),
    Operation(
        method="GET", path=_ONE, handle=connectors.get, value=ConnectorInfo, errors=(404, 503)
    ),
    Operation(
        method="DELETE",
        path=_ONE,
        handle=connectors.delete,
        status=204,
        query=(_FORCE, _KEEP),
        errors=(400, 404, 503),
    ),
    Operation(
        method="GET",
        path=f"{_ONE}/config",
        handle=connectors.get_config,
        value=dict[str, str],
        errors=(404, 503),
    ),
    Operation(
        method="PUT",
        path=f"{_ONE}/config",
        handle=connectors.put_config,
        value=ConnectorInfo,
        body=_CONFIG,
        also=(201,),
        errors=(400, 409, 413, 415, 500, 503),
    ),
    Operation(
        method="PATCH",
        path=f"{_ONE}/config",
        handle=connectors.patch_config,
        value=ConnectorInfo,
        body=_PATCH,
        errors=(400, 404, 409, 413, 415, 500, 503),
    ),
    Operation(
        method="GET",
        path=f"{_ONE}/status",
        handle=connectors.get_status,
        value=ConnectorStatus,
        errors=(404, 503),
    ),
    Operation(
        method="POST",
        path=f"{_ONE}/restart",
        handle=connectors.restart,
        status=204,
        value=ConnectorStatus,
        query=(_TASKS, _FAILED, _FORCE),
        also=(202,),
        errors=(400, 404, 409, 503),
    ),
    Operation(
        method="PUT",
        path=f"{_ONE}/pause",
        handle=connectors.pause,
        status=202,
        errors=(404, 503),
    ),
    Operation(
        method="PUT",
        path=f"{_ONE}/resume",
        handle=connectors.resume,
        status=202,
        errors=(404, 503),
    ),
    Operation(
        method="PUT",
        path=f"{_ONE}/stop",
        handle=connectors.stop,
        status=204,
        query=(_FORCE,),
        errors=(400, 404, 503),
    ),
    Operation(
        method="GET",
        path=f"{_ONE}/tasks",
        handle=connectors.get_tasks,
        value=list[TaskInfo],
        errors=(404, 503),
    ),
    Operation(
        method="GET",
        path=f"{_TASK}/status",
        handle=connectors.get_task_status,
        value=TaskStatus,
        errors=(404, 503),
    ),
    Operation(
        method="POST",
        path=f"{_TASK}/restart",
        handle=connectors.restart_task,
        status=204,
        query=(_FORCE,),
        errors=(400, 404, 409, 503),
    ),
    Operation(
        method="GET",
        path=f"{_ONE}/offsets",
        handle=connectors.get_offsets,
        value=dict[str, Any],
        errors=(404, 503),
    ),
    Operation(
        method="PATCH",
        path=f"{_ONE}/offsets",
        handle=connectors.alter_offsets,
        value=dict[str, str],
        body=_OFFSETS,
        errors=(400, 404, 409, 413, 415, 500, 503),
    ),
    Operation(
        method="DELETE",
        path=f"{_ONE}/offsets",
        handle=connectors.reset_offsets,
        value=dict[str, str],
        errors=(400, 404, 409, 500, 503),
    ),
    Operation(
        method="GET",
        path=f"{_ONE}/topics",
        handle=connectors.get_topics,
        value=dict[str, Any],
        errors=(404, 503),
    ),
    Operation(
        method="PUT",
        path=f"{_ONE}/topics/reset",
        handle=connectors.reset_topics,
        status=202,
        errors=(404, 503),
    ),
    Operation(
        method="GET",
        path="/connector-plugins",
        handle=plugins.list_all,
        value=list[PluginInfo],
        query=(_CONNECTORS,),
        errors=(400, 500),
    ),
    Operation(
        method="GET",
        path=f"{_PLUGIN}/config",
        handle=plugins.describe,
        value=list[dict[str, Any]],
        errors=(404, 500),
    ),
    Operation(
        method="PUT",
        path=f"{_PLUGIN}/config/validate",
        handle=plugins.validate,
        value=dict[str, Any],
        body=_CHECKED,
        errors=(400, 404, 413, 415, 500),
    ),
    Operation(method="GET", path="/admin/tasks", handle=admin.tasks, value=list[UnitReport]),
    Operation(
        method="GET",
        path="/admin/config-log",
        handle=admin.config_log,
        value=list[LogEntry],
        query=(_KEY,),
    ),
    Operation(method="GET", path="/admin/loggers", handle=admin.list_loggers, value=dict[str, Any]),
    Operation(
        method="GET",
        path="/admin/loggers/{logger}",
        handle=admin.get_logger,
        value=dict[str, Any],
        errors=(404,),
    ),
    Operation(
        method="PUT",
        path="/admin/loggers/{logger}",
        handle=admin.set_logger,
        value=list[str],
        body=_LEVEL,
        query=(_SCOPE,),
        also=(204,),
        errors=(400, 404, 413, 415, 503),
    ),
)
