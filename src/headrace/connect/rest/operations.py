"""The table of routes: every operation once, with what its description needs."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from headrace.connect.lifecycle import Target
from headrace.connect.rest.bodies import config_of, create_body, level_of, offsets_of, patch_of
from headrace.connect.rest.calls import Answer, Operation, Parameter, RestCall
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

# Handlers about the worker itself: who it is, how it is, what it runs, what it logs.

_HEALTH = {"healthy": 200, "starting": 503, "stopping": 503}


async def root(call: RestCall) -> Answer:
    """Who answers."""
    return Answer(value=call.connect.cluster())


async def health(call: RestCall) -> Answer:
    """Whether the worker can do its work."""
    found = call.connect.health()
    return Answer(status=_HEALTH.get(found.status, 500), value=found)


async def life(call: RestCall) -> Answer:
    """Whether the worker goes on: one that does not must be started again."""
    found = call.connect.life()
    return Answer(status=200 if found.status == "alive" else 500, value=found)


async def readiness(call: RestCall) -> Answer:
    """Whether the worker takes requests and runs what is its own; what is not there yet."""
    found = call.connect.readiness()
    return Answer(status=200 if found.status == "healthy" else 503, value=found)


async def tasks(call: RestCall) -> Answer:
    """Every copy of a connector or task on this worker, in full."""
    return Answer(value=call.connect.units())


async def config_log(call: RestCall) -> Answer:
    """The config log key by key, with what is deleted."""
    return Answer(value=call.connect.config_log(call.request.query_params.get("key")))


async def list_loggers(call: RestCall) -> Answer:
    """The loggers of the worker, and those of plugins whose level was set."""
    return Answer(value=call.connect.loggers.levels())


async def get_logger(call: RestCall) -> Answer:
    """The level of a logger."""
    return Answer(value=call.connect.loggers.level(call.path("logger")))


async def set_logger(call: RestCall) -> Answer:
    """Set the level of a logger and of all below it, here or on every worker."""
    scope = call.choices("scope", "worker", "cluster")
    name, level = call.path("logger"), level_of(await call.object())
    if "cluster" not in scope:
        return Answer(value=call.connect.loggers.set(name, level))
    await call.connect.set_level(name, level)
    return Answer(status=204)


# Handlers of ``/connectors``.


async def list_all(call: RestCall) -> Answer:
    """Names of all connectors; with ``expand`` also what each is to do and how it is doing."""
    connect = call.connect
    expand = call.choices("expand", "info", "status")
    names = connect.names()
    if not expand:
        return Answer(value=names)
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for name, parts in found.items():
        if "status" in expand:
            parts["status"] = connect.status(name)
        if "info" in expand:
            parts["info"] = connect.info(name)
    return Answer(value=found)


async def create(call: RestCall) -> Answer:
    """Make a connector."""
    body = create_body(await call.object())
    return _created(await call.connect.create(body.name, body.config, target=body.target))


async def get(call: RestCall) -> Answer:
    """What a connector is to do."""
    return Answer(value=call.connect.info(call.connector))


async def delete(call: RestCall) -> Answer:
    """Delete a connector and stop its tasks; where it was is forgotten, unless it is to be kept."""
    await call.connect.delete(
        call.connector, force=call.flag("force"), keep_offsets=call.flag("keepOffsets")
    )
    return Answer(status=204)


async def get_config(call: RestCall) -> Answer:
    """The config of a connector."""
    return Answer(value=call.connect.info(call.connector).config)


async def put_config(call: RestCall) -> Answer:
    """Replace the config of a connector, or make one."""
    config = config_of(await call.object())
    info, created = await call.connect.put_config(call.connector, config)
    return _created(info) if created else Answer(value=info)


async def patch_config(call: RestCall) -> Answer:
    """Change some keys of a config; null takes a key out."""
    patch = patch_of(await call.object())
    return Answer(value=await call.connect.patch_config(call.connector, patch))


async def get_status(call: RestCall) -> Answer:
    """How a connector and its tasks are doing."""
    return Answer(value=call.connect.status(call.connector))


async def get_tasks(call: RestCall) -> Answer:
    """The tasks of a connector with their configs."""
    return Answer(value=call.connect.tasks(call.connector))


async def get_task_status(call: RestCall) -> Answer:
    """How a task is doing."""
    return Answer(value=call.connect.task_status(call.connector, call.task))


async def restart_task(call: RestCall) -> Answer:
    """Start a new copy of a task."""
    await call.connect.restart_task(call.connector, call.task, force=call.flag("force"))
    return Answer(status=204)


async def restart(call: RestCall) -> Answer:
    """Start a new copy of a connector, and of its tasks where that is asked."""
    tasks, failed = call.flag("includeTasks"), call.flag("onlyFailed")
    status = await call.connect.restart(
        call.connector, include_tasks=tasks, only_failed=failed, force=call.flag("force")
    )
    return Answer(status=202, value=status) if tasks or failed else Answer(status=204)


async def pause(call: RestCall) -> Answer:
    """Pause a connector; its tasks keep their resources."""
    await call.connect.set_target(call.connector, Target.PAUSED)
    return Answer(status=202)


async def resume(call: RestCall) -> Answer:
    """Resume a connector that is paused or stopped."""
    await call.connect.set_target(call.connector, Target.RUNNING)
    return Answer(status=202)


async def stop(call: RestCall) -> Answer:
    """Stop a connector and its tasks; config and offsets stay."""
    await call.connect.set_target(call.connector, Target.STOPPED, force=call.flag("force"))
    return Answer(status=204)


async def get_offsets(call: RestCall) -> Answer:
    """Where a connector is in what it reads."""
    return Answer(value={"offsets": await call.connect.offsets(call.connector)})


async def alter_offsets(call: RestCall) -> Answer:
    """Set where a stopped connector goes on."""
    entries = offsets_of(await call.object())
    return Answer(value={"message": await call.connect.alter_offsets(call.connector, entries)})


async def reset_offsets(call: RestCall) -> Answer:
    """Reset the offsets of a stopped connector, so that it begins anew."""
    return Answer(value={"message": await call.connect.reset_offsets(call.connector)})


async def get_topics(call: RestCall) -> Answer:
    """Topics that a connector has used."""
    return Answer(
        value={call.connector: {"topics": call.connect.topics(call.connector)}},
    )


async def reset_topics(call: RestCall) -> Answer:
    """Forget the topics that a connector has used."""
    await call.connect.reset_topics(call.connector)
    return Answer(status=202)


def _created(info: ConnectorInfo) -> Answer:
    headers = {"Location": f"/connectors/{quote(info.name, safe='')}"}
    return Answer(status=201, value=info, headers=headers)


# Handlers of ``/connector-plugins``.


async def list_plugins(call: RestCall) -> Answer:
    """Connectors that can be made; with ``connectorsOnly=false`` all other plugins too."""
    given = call.request.query_params.get("connectorsOnly")
    connectors_only = given is None or call.flag("connectorsOnly")
    return Answer(value=await call.connect.plugins(connectors_only=connectors_only))


async def describe(call: RestCall) -> Answer:
    """The config keys of a plugin."""
    return Answer(value=await call.connect.describe(call.path("plugin")))


async def validate(call: RestCall) -> Answer:
    """Check a config without making a connector."""
    config = config_of(await call.object())
    return Answer(value=await call.connect.validate(call.path("plugin"), config))


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
    Operation("GET", "/", root, WorkerInfo),
    Operation("GET", "/health", health, Health, also=(500, 503)),
    Operation("GET", "/livez", life, Health, also=(500,)),
    Operation("GET", "/readyz", readiness, Health, also=(503,)),
    Operation(
        "GET",
        "/connectors",
        list_all,
        list[str] | dict[str, dict[str, Any]],
        query=(_EXPAND,),
        errors=(400, 503),
    ),
    Operation(
        "POST",
        "/connectors",
        create,
        ConnectorInfo,
        status=201,
        body=_CREATE,
        errors=(400, 409, 413, 415, 500, 503),
    ),
    Operation("GET", _ONE, get, ConnectorInfo, errors=(404, 503)),
    Operation("DELETE", _ONE, delete, status=204, query=(_FORCE, _KEEP), errors=(400, 404, 503)),
    Operation("GET", f"{_ONE}/config", get_config, dict[str, str], errors=(404, 503)),
    Operation(
        "PUT",
        f"{_ONE}/config",
        put_config,
        ConnectorInfo,
        body=_CONFIG,
        also=(201,),
        errors=(400, 409, 413, 415, 500, 503),
    ),
    Operation(
        "PATCH",
        f"{_ONE}/config",
        patch_config,
        ConnectorInfo,
        body=_PATCH,
        errors=(400, 404, 409, 413, 415, 500, 503),
    ),
    Operation("GET", f"{_ONE}/status", get_status, ConnectorStatus, errors=(404, 503)),
    Operation(
        "POST",
        f"{_ONE}/restart",
        restart,
        ConnectorStatus,
        status=204,
        query=(_TASKS, _FAILED, _FORCE),
        also=(202,),
        errors=(400, 404, 409, 503),
    ),
    Operation("PUT", f"{_ONE}/pause", pause, status=202, errors=(404, 503)),
    Operation("PUT", f"{_ONE}/resume", resume, status=202, errors=(404, 503)),
    Operation("PUT", f"{_ONE}/stop", stop, status=204, query=(_FORCE,), errors=(400, 404, 503)),
    Operation("GET", f"{_ONE}/tasks", get_tasks, list[TaskInfo], errors=(404, 503)),
    Operation("GET", f"{_TASK}/status", get_task_status, TaskStatus, errors=(404, 503)),
    Operation(
        "POST",
        f"{_TASK}/restart",
        restart_task,
        status=204,
        query=(_FORCE,),
        errors=(400, 404, 409, 503),
    ),
    Operation("GET", f"{_ONE}/offsets", get_offsets, dict[str, Any], errors=(404, 503)),
    Operation(
        "PATCH",
        f"{_ONE}/offsets",
        alter_offsets,
        dict[str, str],
        body=_OFFSETS,
        errors=(400, 404, 409, 413, 415, 500, 503),
    ),
    Operation(
        "DELETE", f"{_ONE}/offsets", reset_offsets, dict[str, str], errors=(400, 404, 409, 500, 503)
    ),
    Operation("GET", f"{_ONE}/topics", get_topics, dict[str, Any], errors=(404, 503)),
    Operation("PUT", f"{_ONE}/topics/reset", reset_topics, status=202, errors=(404, 503)),
    Operation(
        "GET",
        "/connector-plugins",
        list_plugins,
        list[PluginInfo],
        query=(_CONNECTORS,),
        errors=(400, 500),
    ),
    Operation("GET", f"{_PLUGIN}/config", describe, list[dict[str, Any]], errors=(404, 500)),
    Operation(
        "PUT",
        f"{_PLUGIN}/config/validate",
        validate,
        dict[str, Any],
        body=_CHECKED,
        errors=(400, 404, 413, 415, 500),
    ),
    Operation("GET", "/admin/tasks", tasks, list[UnitReport]),
    Operation("GET", "/admin/config-log", config_log, list[LogEntry], query=(_KEY,)),
    Operation("GET", "/admin/loggers", list_loggers, dict[str, Any]),
    Operation("GET", "/admin/loggers/{logger}", get_logger, dict[str, Any], errors=(404,)),
    Operation(
        "PUT",
        "/admin/loggers/{logger}",
        set_logger,
        list[str],
        body=_LEVEL,
        query=(_SCOPE,),
        also=(204,),
        errors=(400, 404, 413, 415, 503),
    ),
)
