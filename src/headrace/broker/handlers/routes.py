"""Requests to the name server: routes, the cluster, names of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.routes import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicList,
    TopicRoute,
    dumps,
)

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command

__all__ = ["HANDLERS"]


def _broker(core: Core) -> BrokerData:
    return BrokerData(
        cluster=core.cluster, broker_name=core.name, broker_addrs=core.replication.addresses()
    )


def get_route(core: Core, request: Request) -> Command:
    """Tell where a topic's queues are."""
    config = core.topics.get(request.text("topic"))
    queues = QueueData(
        broker_name=core.name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_sys_flag=config.topic_sys_flag,
    )
    info = core.static_topics.info(config.topic_name)
    route = TopicRoute(
        broker_datas=[_broker(core)],
        queue_datas=[queues],
        topic_queue_mapping_by_broker=None if info is None else {core.name: info},
    )
    return request.reply(body=dumps(route))


def get_cluster(core: Core, request: Request) -> Command:
    """Tell which brokers there are: this one."""
    info = ClusterInfo(
        broker_addr_table={core.name: _broker(core)}, cluster_addr_table={core.cluster: [core.name]}
    )
    return request.reply(body=dumps(info))


def get_all_topics(core: Core, request: Request) -> Command:
    """List the names of all topics."""
    return request.reply(body=dumps(TopicList(topic_list=sorted(core.topics))))


def get_topics_of_cluster(core: Core, request: Request) -> Command:
    """List the names of a cluster's topics."""
    names = sorted(core.topics) if request.text("cluster") == core.cluster else []
    return request.reply(body=dumps(TopicList(topic_list=names)))


def get_system_topics(core: Core, request: Request) -> Command:
    """List the topics that exist from the start."""
    names = sorted(core.topics.system)
    return request.reply(body=dumps(TopicList(topic_list=names, broker_addr=core.address)))


def get_setting(_core: Core, request: Request) -> Command:
    """Look up a name server's key, of which this one keeps none."""
    namespace, key = request.text("namespace"), request.text("key")
    remark = f"No config item, Namespace: {namespace} Key: {key}"
    return request.reply(ResponseCode.QUERY_NOT_FOUND, remark)


def get_settings(_core: Core, request: Request) -> Command:
    """Look up a namespace of the name server's keys, of which this one keeps none."""
    remark = f"No config item, Namespace: {request.text('namespace')}"
    return request.reply(ResponseCode.QUERY_NOT_FOUND, remark)


HANDLERS = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: get_route,
    RequestCode.GET_BROKER_CLUSTER_INFO: get_cluster,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: get_all_topics,
    RequestCode.GET_TOPICS_BY_CLUSTER: get_topics_of_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: get_system_topics,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: get_system_topics,
    RequestCode.GET_KV_CONFIG: get_setting,
    RequestCode.GET_KVLIST_BY_NAMESPACE: get_settings,
}
