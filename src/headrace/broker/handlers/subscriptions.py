"""Requests of tools about the settings of groups: create, change, delete and describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.protocol.codes import RequestCode
from headrace.protocol.groups import SubscriptionGroupConfig
from headrace.protocol.routes import DataVersion, dumps

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command

__all__ = ["HANDLERS"]


async def update_group(core: Core, request: Request) -> Command:
    """Create a group or change it."""
    await _update(core, [request.body(SubscriptionGroupConfig)])
    return request.reply()


async def update_groups(core: Core, request: Request) -> Command:
    """Create or change several groups."""
    body = await core.read(request, dict[str, list[SubscriptionGroupConfig]])
    await _update(core, body.get("groupConfigList", []))
    return request.reply()


async def _update(core: Core, configs: list[SubscriptionGroupConfig]) -> None:
    async for part in core.in_parts(configs):
        for config in part:
            core.groups.update(config)
            core.retry_topic(config.group_name)
    await core.save()


async def get_groups(core: Core, request: Request) -> Command:
    """Describe all groups."""
    body = {
        "subscriptionGroupTable": {config.group_name: config for config in core.groups.configs()},
        "forbiddenTable": {},
        "dataVersion": DataVersion(timestamp=core.started, counter=core.groups.version),
    }
    return request.reply(body=await core.in_thread(dumps, body))


def get_group(core: Core, request: Request) -> Command:
    """Describe one group."""
    config = core.groups.get(request.text("group"))
    core.save_soon()
    return request.reply(body=dumps(config))


async def delete_group(core: Core, request: Request) -> Command:
    """Delete a group, and its offsets if asked to; a member's next request creates it anew."""
    name = request.text("groupName")
    core.groups.delete(name)
    core.clients.forget(name)
    if request.flag("cleanOffset"):
        core.offsets.forget_group(name)
    await core.save(offsets=request.flag("cleanOffset"))
    return request.reply()


HANDLERS = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: update_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: update_groups,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: get_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: get_group,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
}
