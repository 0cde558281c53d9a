"""Requests to the name server that change what it knows: of brokers, and of tools."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace.broker.naming.registry import BrokerPlace, Registration
from headrace.errors import InvalidParameterError
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.registration import body_checksum, read_registration
from headrace.protocol.routes import DataVersion, TopicRoute, dumps

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command

__all__ = ["HANDLERS"]

_MASTER = 0


async def register_broker(core: Core, request: Request) -> Command:
    """Take note of a broker and its topics."""
    body = request.command.payload
    checksum = request.number("bodyCrc32", 0)
    if checksum and checksum != body_checksum(body):
        return request.reply(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    told = _registration(request)
    _check_name(core, told)
    read = partial(
        read_registration,
        body,
        compressed=request.flag("compressed"),
        version=request.command.version,
    )
    # A packed one may be small, and hold much.
    content = await core.in_thread(read)
    core.names.registry.register(
        told,
        content.topic_config_serialize_wrapper,
        peer=request.peer.number,
        now=core.loop.time(),
    )
    master = _master(core, told) if told.broker_id != _MASTER else None
    ext = {} if master is None else {"masterAddr": master[0], "haServerAddr": master[1]}
    return request.reply(ext=ext)


def _registration(request: Request) -> Registration:
    timeout = request.number("heartbeatTimeoutMillis", 0)
    acting = request.command.ext.get("enableActingMaster")
    return Registration(
        name=request.text("brokerName"),
        place=_place(request),
        broker_id=request.number("brokerId"),
        ha_address=request.text("haServerAddr", ""),
        expiry=timeout / 1000 if timeout > 0 else None,
        acting_master=None if acting is None else request.flag("enableActingMaster"),
        zone=request.command.ext.get("__ZONE_NAME"),
    )


def _place(request: Request) -> BrokerPlace:
    return BrokerPlace(request.text("clusterName"), request.text("brokerAddr"))


def _check_name(core: Core, told: Registration) -> None:
    if told.name == core.name and told.broker_id == _MASTER and told.place.address != core.address:
        message = f"the broker at {told.place.address} is named {told.name!r}, as this one is"
        hint = "Give one of them another name (brokerName, or --broker-name of this one)."
        raise InvalidParameterError(message, hint=hint)


def _master(core: Core, told: Registration) -> tuple[str, str] | None:
    if told.name == core.name:
        return core.address, core.address
    return core.names.registry.master(told.name)


def unregister_broker(core: Core, request: Request) -> Command:
    """Forget a broker."""
    name, broker_id = request.text("brokerName"), request.number("brokerId")
    core.names.registry.unregister(name, broker_id, _place(request))
    return request.reply()


def heartbeat(core: Core, request: Request) -> Command:
    """Take a broker's sign of life."""
    core.names.registry.touch(_place(request), now=core.loop.time())
    return request.reply()


def query_data_version(core: Core, request: Request) -> Command:
    """Tell a broker whether it must register anew, and take it for a sign of life."""
    registry, place = core.names.registry, _place(request)
    changed = registry.has_changed(place, request.body(DataVersion))
    registry.touch(place, now=core.loop.time())
    known = registry.version(place)
    body = b"" if known is None else dumps(known)
    return request.reply(ext={"changed": str(changed).lower()}, body=body)


def get_member_group(core: Core, request: Request) -> Command:
    """List the processes of one broker's name."""
    name, cluster = request.text("brokerName"), request.text("clusterName")
    found = core.names.registry.brokers().get(name)
    addresses = {} if found is None else found.broker_addrs
    if name == core.name:
        addresses = {"0": core.address, **addresses}
    group = {"cluster": cluster, "brokerName": name, "brokerAddrs": addresses}
    return request.reply(body=dumps({"brokerMemberGroup": group}))


def register_topic(core: Core, request: Request) -> Command:
    """Take note of a topic of brokers that are known."""
    route = request.body(TopicRoute)
    core.names.registry.add_topic(request.text("topic"), route.queue_datas)
    return request.reply()


def delete_topic(core: Core, request: Request) -> Command:
    """Forget a topic; this broker's own is known for as long as the broker has it."""
    cluster = request.command.ext.get("clusterName") or None
    core.names.registry.delete_topic(request.text("topic"), cluster)
    return request.reply()


def wipe_write_perm(core: Core, request: Request) -> Command:
    """Let routes say that a broker takes no messages, so that it can be emptied."""
    count = _set_writable(core, request.text("brokerName"), writable=False)
    return request.reply(ext={"wipeTopicCount": str(count)})


def add_write_perm(core: Core, request: Request) -> Command:
    """Let routes say again that a broker takes messages."""
    count = _set_writable(core, request.text("brokerName"), writable=True)
    return request.reply(ext={"addTopicCount": str(count)})


def _set_writable(core: Core, name: str, *, writable: bool) -> int:
    if name != core.name:
        return core.names.registry.set_writable(name, writable=writable)
    core.names.is_writable = writable
    return len(list(core.topics))


def put_setting(core: Core, request: Request) -> Command:
    """Set a key of the name server."""
    core.names.put(request.text("namespace"), request.text("key"), request.text("value"))
    return request.reply()


def get_setting(core: Core, request: Request) -> Command:
    """Look up a key of the name server."""
    namespace, key = request.text("namespace"), request.text("key")
    value = core.names.get(namespace, key)
    if value is None:
        remark = f"No config item, Namespace: {namespace} Key: {key}"
        return request.reply(ResponseCode.QUERY_NOT_FOUND, remark)
    return request.reply(ext={"value": value})


def delete_setting(core: Core, request: Request) -> Command:
    """Remove a key of the name server."""
    core.names.delete(request.text("namespace"), request.text("key"))
    return request.reply()


def get_settings(core: Core, request: Request) -> Command:
    """Look up all keys of a namespace of the name server."""
    namespace = request.text("namespace")
    table = core.names.namespace(namespace)
    if not table:
        remark = f"No config item, Namespace: {namespace}"
        return request.reply(ResponseCode.QUERY_NOT_FOUND, remark)
    return request.reply(body=dumps({"table": table}))


def update_config(core: Core, request: Request) -> Command:
    """Keep settings that a tool sends to the name server, to tell them again."""
    for line in request.lines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith("#"):
            core.names.properties[name.strip()] = value.strip()
    return request.reply()


HANDLERS = {
    RequestCode.REGISTER_BROKER: register_broker,
    RequestCode.UNREGISTER_BROKER: unregister_broker,
    RequestCode.BROKER_HEARTBEAT: heartbeat,
    RequestCode.QUERY_DATA_VERSION: query_data_version,
    RequestCode.GET_BROKER_MEMBER_GROUP: get_member_group,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: register_topic,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: wipe_write_perm,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: add_write_perm,
    RequestCode.PUT_KV_CONFIG: put_setting,
    RequestCode.GET_KV_CONFIG: get_setting,
    RequestCode.DELETE_KV_CONFIG: delete_setting,
    RequestCode.GET_KVLIST_BY_NAMESPACE: get_settings,
    RequestCode.UPDATE_NAMESRV_CONFIG: update_config,
}
