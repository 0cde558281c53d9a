"""Handlers of ``/connectors``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headrace.connect.lifecycle import Target
from headrace.connect.rest.bodies import config_of, create_body, offsets_of, patch_of
from headrace.connect.rest.calls import Answer, RestCall

if TYPE_CHECKING:
    from headrace.connect.worker.reporting import ConnectorInfo

__all__ = [
    "alter_offsets",
    "create",
    "delete",
    "get",
    "get_config",
    "get_offsets",
    "get_status",
    "get_task_status",
    "get_tasks",
    "get_topics",
    "list_all",
    "patch_config",
    "pause",
    "put_config",
    "reset_offsets",
    "reset_topics",
    "restart",
    "restart_task",
    "resume",
    "stop",
]


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
    """Let a connector rest; its tasks keep their resources."""
    await call.connect.set_target(call.connector, Target.PAUSED)
    return Answer(status=202)


async def resume(call: RestCall) -> Answer:
    """Let a connector go on that is paused or stopped."""
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
    """Have a stopped connector begin anew."""
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
