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


def update_group(core: Core, request: Request) -> Command:
    """Create a group or change it."""
    _update(core, [request.body(SubscriptionGroupConfig)])
    return request.reply()


def update_groups(core: Core, request: Request) -> Command:
    """Create or change several groups."""
    body = request.body(dict[str, list[SubscriptionGroupConfig]])
    _update(core, body.get("groupConfigList", []))
    return request.reply()


def _update(core: Core, configs: list[SubscriptionGroupConfig]) -> None:
    for config in configs:
        core.groups.update(config)
    core.save_groups()
    for config in configs:
        core.retry_topic(config.group_name)


def get_groups(core: Core, request: Request) -> Command:
    """Describe all groups."""
    body = {
        "subscriptionGroupTable": {config.group_name: config for config in core.groups.configs()},
        "forbiddenTable": {},
        "dataVersion": DataVersion(timestamp=core.started, counter=core.groups.version),
    }
    return request.reply(body=dumps(body))


def get_group(core: Core, request: Request) -> Command:
    """Describe one group."""
    config = core.groups.get(request.text("group"))
    core.save_groups()
    return request.reply(body=dumps(config))


def delete_group(core: Core, request: Request) -> Command:
    """Delete a group, and its offsets if asked to; a member's next request creates it anew."""
    name = request.text("groupName")
    core.groups.delete(name)
    core.save_groups()
    core.clients.forget(name)
    if request.flag("cleanOffset"):
        core.offsets.forget_group(name)
        core.save_offsets()
    return request.reply()


HANDLERS = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: update_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: update_groups,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: get_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: get_group,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
}
