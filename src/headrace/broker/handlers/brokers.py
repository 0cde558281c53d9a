"""Requests of tools and other brokers about the broker itself."""

from __future__ import annotations

import dataclasses
import shutil
import zlib
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headrace.broker.handlers.jobs import restore_jobs
from headrace.broker.naming.registry import BrokerPlace, Registration
from headrace.broker.replication import promotion
from headrace.broker.replication.follower import changed, own_stamp
from headrace.broker.replication.replicas import Role, SessionLease
from headrace.errors import (
    BrokerBusyError,
    FencedError,
    InvalidParameterError,
    NotFoundError,
    TopicNotFoundError,
)
from headrace.protocol import routes
from headrace.protocol.codes import Perm, RequestCode, ResponseCode
from headrace.protocol.replication import FenceRequest, Greeting, Welcome
from headrace.store.replication.copyist import PositionVerdict, judge
from headrace.store.replication.following import Epoch

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.broker.static_topics import Rate
    from headrace.protocol.frames import Command
    from headrace.store import StoreStatistics


# Requests to the name server that change what it knows: of brokers, and of tools.

_MASTER = 0


async def register_broker(core: Core, request: Request) -> Command:
    """Take note of a broker and its topics."""
    body = request.command.payload
    checksum = request.number("bodyCrc32", 0)
    if checksum and checksum != routes.body_checksum(body):
        return request.reply(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    told = _registration(request)
    _check_name(core, told)
    read = partial(
        routes.read_registration,
        body,
        compressed=request.flag("compressed"),
        version=request.command.version,
    )
    # A packed one may be small, and hold much.
    content = await core.work.in_thread(read)
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
    """Answer whether a broker must register anew, and take it for a sign of life."""
    registry, place = core.names.registry, _place(request)
    changed = registry.has_changed(place, request.body(routes.DataVersion))
    registry.touch(place, now=core.loop.time())
    known = registry.version(place)
    body = b"" if known is None else routes.dumps(known)
    return request.reply(ext={"changed": str(changed).lower()}, body=body)


def get_member_group(core: Core, request: Request) -> Command:
    """List the processes of one broker's name."""
    name, cluster = request.text("brokerName"), request.text("clusterName")
    found = core.names.registry.brokers().get(name)
    addresses = {} if found is None else found.broker_addrs
    if name == core.name:
        addresses = {"0": core.address, **addresses}
    group = {"cluster": cluster, "brokerName": name, "brokerAddrs": addresses}
    return request.reply(body=routes.dumps({"brokerMemberGroup": group}))


def register_topic(core: Core, request: Request) -> Command:
    """Take note of a topic of brokers that are known."""
    route = request.body(routes.TopicRoute)
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
    return request.reply(body=routes.dumps({"table": table}))


def update_config(core: Core, request: Request) -> Command:
    """Keep settings that a tool sends to the name server, to tell them again."""
    for line in request.lines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith("#"):
            core.names.properties[name.strip()] = value.strip()
    return request.reply()


# Requests to the name server: routes, the cluster, names of topics, of all brokers it knows.


def _brokers(core: Core) -> dict[str, routes.BrokerData]:
    """Describe this broker and all that registered, by name."""
    brokers = core.names.registry.brokers()
    own = brokers.setdefault(
        core.name, routes.BrokerData(cluster=core.cluster, broker_name=core.name)
    )
    # A replica may have registered under its name.
    own.broker_addrs = {**own.broker_addrs, **core.replication.addresses()}
    return brokers


def _own_queues(core: Core, config: routes.TopicConfig) -> routes.QueueData:
    perm = config.perm if core.names.is_writable else config.perm & ~Perm.WRITE
    return routes.QueueData(
        broker_name=core.name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=perm,
        topic_sys_flag=config.topic_sys_flag,
    )


def get_route(core: Core, request: Request) -> Command:
    """Return where a topic's queues are."""
    topic = request.text("topic")
    config = core.topics.find(topic)
    queues = core.names.registry.queues(topic)
    mappings = core.names.registry.mappings(topic)
    if config is not None:
        queues.append(_own_queues(core, config))
        info = core.static_topics.info(topic)
        mappings |= {} if info is None else {core.name: info}
    if not queues:
        message = f"No topic route info in name server for the topic: {topic}"
        core.replication.require_topics(message)
        raise TopicNotFoundError(message, hint="Create it: headrace topic create NAME.")
    brokers = _brokers(core)
    names = sorted({data.broker_name for data in queues} & set(brokers))
    route = routes.TopicRoute(
        broker_datas=[brokers[name] for name in names],
        queue_datas=sorted(queues, key=lambda data: data.broker_name),
        order_topic_conf=core.names.order(topic),
        topic_queue_mapping_by_broker=mappings or None,
    )
    return request.reply(body=routes.dumps(route))


def get_cluster(core: Core, request: Request) -> Command:
    """Return which brokers there are."""
    brokers = _brokers(core)
    clusters: dict[str, list[str]] = {}
    for name, data in sorted(brokers.items()):
        clusters.setdefault(data.cluster, []).append(name)
    info = routes.ClusterInfo(broker_addr_table=brokers, cluster_addr_table=clusters)
    return request.reply(body=routes.dumps(info))


async def get_all_topics(core: Core, request: Request) -> Command:
    """List the names of all topics."""
    names = {*core.topics, *core.names.registry.topics()}
    return request.reply(body=await core.work.in_thread(_listed, names))


def _listed(names: set[str]) -> bytes:
    return routes.dumps(routes.TopicList(topic_list=sorted(names)))


def get_topics_of_cluster(core: Core, request: Request) -> Command:
    """List the names of a cluster's topics."""
    cluster = request.text("cluster")
    names = {
        *core.names.registry.topics(cluster),
        *(core.topics if cluster == core.cluster else ()),
    }
    return request.reply(body=routes.dumps(routes.TopicList(topic_list=sorted(names))))


def get_system_topics(core: Core, request: Request) -> Command:
    """List the topics that exist from the start."""
    names = sorted(core.topics.system)
    return request.reply(
        body=routes.dumps(routes.TopicList(topic_list=names, broker_addr=core.address))
    )


def get_system_topics_of_all(core: Core, request: Request) -> Command:
    """List the topics that the name server has of itself: clusters and brokers by their names."""
    brokers = _brokers(core)
    names = {*brokers, *(data.cluster for data in brokers.values()), *core.topics.system}
    return request.reply(
        body=routes.dumps(routes.TopicList(topic_list=sorted(names), broker_addr=core.address))
    )


#: RocketMQ's tools show the version of the protocol that they speak with us.
_VERSION_NUMBER = "479"
_VERSION = "V5_3_3"


def get_runtime_info(core: Core, request: Request) -> Command:
    """Return what the broker holds and how full its disk is."""
    store = core.store.statistics()
    disk = shutil.disk_usage(core.folder)
    table = {
        "brokerVersion": _VERSION_NUMBER,
        "brokerVersionDesc": _VERSION,
        "brokerActive": "true",
        "bootTimestamp": str(core.tables.started),
        "runtime": _age(core),
        "putTps": _text(core.put_rate),
        "getTransferredTps": _text(core.get_rate),
        "earliestMessageTimeStamp": str(core.earliest()),
        "commitLogMinOffset": str(store.begin),
        "commitLogMaxOffset": str(store.end),
        "commitLogDiskRatio": f"{disk.used / disk.total:.4f}",
        "msgPutTotalTodayNow": str(store.appended_records),
        "sendThreadPoolQueueSize": "0",
        "pullThreadPoolQueueSize": "0",
        "headraceQueues": str(store.queues),
        "headraceFreeBytes": str(disk.free),
    }
    table |= _compaction(store)
    table |= {f"headraceRefused.{name}": str(n) for name, n in core.refusals.counts.items()}
    if store.failure is not None:
        table["headraceFailure"] = store.failure
    return request.reply(body=routes.dumps({"table": table}))


def _compaction(store: StoreStatistics) -> dict[str, str]:
    """Return how topics that keep the newest message of each key are."""
    done, reput = store.compaction, store.reput
    written = f"{done.bytes_written / reput.bytes:.2f}" if reput.bytes else "0"
    return {
        "headraceCompactionQueues": str(done.queues),
        "headraceCompactionCleanBytes": str(done.clean_bytes),
        "headraceCompactionDirtyBytes": str(done.dirty_bytes),
        "headraceCompactionRuns": str(done.runs),
        "headraceCompactionLastRun": str(done.last_run),
        "headraceCompactionFailures": str(done.failures),
        "headraceCompactionAmplification": written,
        "headraceReputLag": str(reput.lag),
        "dispatchBehindBytes": str(reput.lag),
    } | {f"headraceCompactionError.{queue}": error for queue, error in done.errors.items()}


def _text(rate: Rate) -> str:
    return " ".join(f"{number:.2f}" for number in rate.per_second())


def _age(core: Core) -> str:
    seconds = (core.now() - core.tables.started) // 1000
    days, rest = divmod(seconds, 86_400)
    return f"[ {days} days, {rest // 3600} hours, {rest // 60 % 60} minutes, {rest % 60} seconds ]"


def get_broker_config(core: Core, request: Request) -> Command:
    """List the broker's settings, as properties."""
    lines = {
        "brokerName": core.name,
        "brokerClusterName": core.cluster,
        "brokerId": "0",
        "brokerIP1": core.host,
        "listenPort": str(core.port),
        "namesrvAddr": core.address,
        "storePathRootDir": str(core.folder),
        "flushDiskType": f"{core.settings.flush.upper()}_FLUSH",
        "maxMessageSize": str(core.settings.max_message_size),
        "autoCreateTopicEnable": str(core.settings.create_topics).lower(),
        "autoCreateSubscriptionGroup": str(core.settings.create_groups).lower(),
        "messageDelayLevel": core.settings.delay_levels,
        "defaultTopicQueueNums": str(core.settings.default_queues),
        "fileReservedTime": _hours(core.settings.retention),
        "diskMaxUsedSpaceRatio": f"{100 * core.settings.disk_watermark:.0f}",
        "enableCompaction": "true",
        "mappedFileSizeCommitLog": str(core.settings.segment_size),
    }
    for field in dataclasses.fields(core.settings):
        lines.setdefault(f"headrace.{field.name}", str(getattr(core.settings, field.name)))
    text = "".join(f"{key}={value}\n" for key, value in sorted(lines.items()))
    stamp = f'{{"stateVersion":0,"timestamp":{core.tables.started},"counter":0}}'
    return request.reply(ext={"version": stamp}, body=text.encode())


def _hours(duration: timedelta | None) -> str:
    return "2147483647" if duration is None else f"{duration.total_seconds() / 3600:g}"


def get_namesrv_config(core: Core, request: Request) -> Command:
    """List the name server's settings, as properties."""
    started = datetime.fromtimestamp(core.tables.started / 1000, UTC).isoformat()
    lines = {"listenPort": str(core.port), "headrace.started": started, **core.names.properties}
    text = "".join(f"{name}={value}\n" for name, value in lines.items())
    return request.reply(body=text.encode())


# Requests of followers, and of those who look after them.

_MOST_BYTES = 64 * 1024 * 1024
_MOST_RECORDS = 65_536
_encode = msgspec.json.Encoder().encode


def greet(core: Core, request: Request) -> Command:
    """Take up a follower, and describe the log to it."""
    replication = core.replication
    if replication.role is Role.FOLLOWER:
        replication.require(Role.PRIMARY)
    asked = request.strict_body(Greeting)
    if (asked.broker, asked.cluster) != (core.name, core.cluster):
        message = f"the follower is called {asked.broker!r} of {asked.cluster!r}, this broker"
        hint = "give both the same --broker-name and --cluster: clients ask for them by these"
        raise InvalidParameterError(f"{message} {core.name!r} of {core.cluster!r}", hint=hint)
    number = replication.admit(asked.follower, asked.address, request.peer.number)
    head = replication.port.head()
    answer = Welcome(
        log=replication.state.log,
        epochs=[(each.number, each.start, each.mark) for each in head.epochs.epochs],
        begin=head.begin,
        end=replication.port.end,
        newest=head.newest,
        number=number,
    )
    return request.reply(body=_encode(answer))


async def follow_log(core: Core, request: Request) -> Command:
    """Return bytes of the log from a position on, or wait for some."""
    replication, number = core.replication, request.number
    if replication.role is Role.FOLLOWER:
        replication.require(Role.PRIMARY)
    position = number("position")
    follower, address = request.text("follower"), request.text("address")
    newest = Epoch(number("epoch"), number("epochStart"), number("epochMark", signed=False))
    head = replication.port.head(replication.state.log)
    verdict = judge(head, request.text("log"), newest, position)
    if verdict is PositionVerdict.STALE:
        replication.fence(newest.number, "")
        raise FencedError(
            f"the follower at {address} knows epoch {newest.number}: this broker was replaced"
        )
    if verdict is not PositionVerdict.FITS:
        remark = f"position {position} of {request.text('log')!r} is {verdict.value}"
        return request.reply(ResponseCode.PULL_OFFSET_MOVED, remark)
    replication.heard(follower, address, position, number("durable"))
    if replication.port.end <= position:
        await replication.more(position, number("wait") / 1000)
        if replication.is_here(request.peer.number):
            replication.heard(follower, address, position, number("durable"))
    stretch = replication.port.read(position, min(number("maxBytes"), _MOST_BYTES))
    ext = {
        "base": str(stretch.base),
        "position": str(position),
        "end": str(stretch.end),
        # Topics are made before their messages: a follower asks for them before it goes on.
        "topics": own_stamp(core.tables),
        # Somebody may be waiting for an acknowledgement.
        "sync": "true" if replication.book.needed else "false",
    }
    return request.reply(ext=ext, body=stretch.content)


async def pull_records(core: Core, request: Request) -> Command:
    """Return old records of a compacted queue to a follower that rebuilds its log."""
    replication = core.replication
    if replication.role is Role.FOLLOWER:
        replication.require(Role.PRIMARY)
    key = (request.text("topic"), request.number("queueId"), request.number("birth"))
    if core.store.rebuilds.birth(*key[:2]) != key[2]:
        raise NotFoundError(f"queue {key[1]} of topic {key[0]!r} is not that one any more")
    session = request.text("session")
    if request.flag("end"):
        replication.leases.end(key, session)
        return request.reply()
    first, now = request.flag("first"), core.loop.time()
    lease = replication.leases.touch(key, session, first=first, now=now)
    if lease is SessionLease.BUSY:
        raise BrokerBusyError(f"queue {key[1]} of topic {key[0]!r} is being compacted")
    if lease is SessionLease.LOST:
        remark = f"session {session!r} took too long a break: begin again"
        return request.reply(ResponseCode.PULL_OFFSET_MOVED, remark)
    most = min(request.number("maxBytes"), _MOST_BYTES)
    offset, upto = request.number("offset"), request.number("upto")
    found = await core.work.in_thread(core.store.read, *key[:2], offset, _MOST_RECORDS, most)
    body = b"".join(found.slices)
    # Behind the last record that is left there may be a gap.
    following = found.next_offset if found.count else upto
    ext = {"nextOffset": str(following), "crc": str(zlib.crc32(body))}
    return request.reply(ext=ext, body=body)


def follow_tables(core: Core, request: Request) -> Command:
    """Return the tables that have changed."""
    have = request.strict_body(dict[str, int])
    return request.reply(body=_encode(changed(core.tables, request.number("started"), have)))


async def promote_broker(core: Core, request: Request) -> Command:
    """Make this follower a primary."""

    def restore() -> None:
        restore_jobs(core)
        core.half_messages.restore()

    force = request.flag("force")
    answer = await promotion.promote(core.replication, core.follower, restore, force=force)
    core.follower = None
    await core.work.in_thread(core.compact_all)
    return request.reply(body=_encode(answer))


async def fence_broker(core: Core, request: Request) -> Command:
    """Take no more writes, as another broker takes them from here on."""
    answer = await promotion.fence(core.replication, request.strict_body(FenceRequest))
    return request.reply(body=_encode(answer))


def list_replicas(core: Core, request: Request) -> Command:
    """Describe this broker's part in replication, and its followers."""
    return request.reply(body=_encode(core.replication.info()))


HANDLERS = {
    RequestCode.GET_BROKER_RUNTIME_INFO: get_runtime_info,
    RequestCode.GET_BROKER_CONFIG: get_broker_config,
    RequestCode.GET_NAMESRV_CONFIG: get_namesrv_config,
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
    RequestCode.GET_ROUTEINFO_BY_TOPIC: get_route,
    RequestCode.GET_BROKER_CLUSTER_INFO: get_cluster,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: get_all_topics,
    RequestCode.GET_TOPICS_BY_CLUSTER: get_topics_of_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: get_system_topics_of_all,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: get_system_topics,
    RequestCode.GREET_PRIMARY: greet,
    RequestCode.FOLLOW_LOG: follow_log,
    RequestCode.FOLLOW_TABLES: follow_tables,
    RequestCode.PULL_RECORDS: pull_records,
    RequestCode.PROMOTE: promote_broker,
    RequestCode.FENCE: fence_broker,
    RequestCode.LIST_REPLICAS: list_replicas,
}
