"""Requests to the name server: routes, the cluster, names of topics, of all brokers it knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import TopicNotFoundError
from headrace.protocol.codes import Perm, RequestCode
from headrace.protocol.routes import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicConfig,
    TopicList,
    TopicRoute,
    dumps,
)

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command

__all__ = ["HANDLERS"]


def _brokers(core: Core) -> dict[str, BrokerData]:
    """Describe this broker and all that registered, by name."""
    brokers = core.names.registry.brokers()
    own = brokers.setdefault(core.name, BrokerData(cluster=core.cluster, broker_name=core.name))
    # A replica may have registered under its name.
    own.broker_addrs = {**own.broker_addrs, **core.replication.addresses()}
    return brokers


def _own_queues(core: Core, config: TopicConfig) -> QueueData:
    perm = config.perm if core.names.is_writable else config.perm & ~Perm.WRITE
    return QueueData(
        broker_name=core.name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=perm,
        topic_sys_flag=config.topic_sys_flag,
    )


def get_route(core: Core, request: Request) -> Command:
    """Tell where a topic's queues are."""
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
    route = TopicRoute(
        broker_datas=[brokers[name] for name in names],
        queue_datas=sorted(queues, key=lambda data: data.broker_name),
        order_topic_conf=core.names.order(topic),
        topic_queue_mapping_by_broker=mappings or None,
    )
    return request.reply(body=dumps(route))


def get_cluster(core: Core, request: Request) -> Command:
    """Tell which brokers there are."""
    brokers = _brokers(core)
    clusters: dict[str, list[str]] = {}
    for name, data in sorted(brokers.items()):
        clusters.setdefault(data.cluster, []).append(name)
    info = ClusterInfo(broker_addr_table=brokers, cluster_addr_table=clusters)
    return request.reply(body=dumps(info))


async def get_all_topics(core: Core, request: Request) -> Command:
    """List the names of all topics."""
    names = {*core.topics, *core.names.registry.topics()}
    return request.reply(body=await core.in_thread(_listed, names))


def _listed(names: set[str]) -> bytes:
    return dumps(TopicList(topic_list=sorted(names)))


def get_topics_of_cluster(core: Core, request: Request) -> Command:
    """List the names of a cluster's topics."""
    cluster = request.text("cluster")
    names = {
        *core.names.registry.topics(cluster),
        *(core.topics if cluster == core.cluster else ()),
    }
    return request.reply(body=dumps(TopicList(topic_list=sorted(names))))


def get_system_topics(core: Core, request: Request) -> Command:
    """List the topics that exist from the start."""
    names = sorted(core.topics.system)
    return request.reply(body=dumps(TopicList(topic_list=names, broker_addr=core.address)))


def get_system_topics_of_all(core: Core, request: Request) -> Command:
    """List the topics that the name server has of itself: clusters and brokers by their names."""
    brokers = _brokers(core)
    names = {*brokers, *(data.cluster for data in brokers.values()), *core.topics.system}
    return request.reply(body=dumps(TopicList(topic_list=sorted(names), broker_addr=core.address)))


HANDLERS = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: get_route,
    RequestCode.GET_BROKER_CLUSTER_INFO: get_cluster,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: get_all_topics,
    RequestCode.GET_TOPICS_BY_CLUSTER: get_topics_of_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: get_system_topics_of_all,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: get_system_topics,
}
