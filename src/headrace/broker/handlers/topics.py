"""Requests that create, change, delete and describe topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.broker.keeping import keep_as_configured
from headrace.errors import InvalidParameterError
from headrace.protocol.codes import RequestCode
from headrace.protocol.routes import (
    DataVersion,
    MappingDetail,
    QueueRef,
    TopicConfig,
    TopicConfigList,
    TopicConfigTable,
    dumps,
)

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command

__all__ = ["HANDLERS"]


async def update_topic(core: Core, request: Request) -> Command:
    """Create a topic or change it."""
    await _keep(core, [core.topics.update(_config(request), request.text("attributes", ""))])
    return request.reply()


async def _keep(core: Core, configs: list[TopicConfig]) -> None:
    """Make topics durable, and compact those that are to be before they get a message."""
    kept = []
    async for part in core.in_parts(configs):
        kept += [future for config in part if (future := keep_as_configured(core, config))]
    for future in kept:
        await core.stored(future)
    await core.save()


async def update_static_topic(core: Core, request: Request) -> Command:
    """Create a static topic or change it: its queues have numbers that no broker owns."""
    config, detail = _config(request), await core.read(request, MappingDetail)
    if detail.topic != config.topic_name:
        message = f"the mapping is of topic {detail.topic!r}, not {config.topic_name!r}"
        raise InvalidParameterError(message)
    queues = min(config.read_queue_nums, config.write_queue_nums)
    merged = core.static_topics.merged(detail, queues=queues, force=request.flag("force"))
    core.topics.update(config, request.text("attributes", ""))
    core.static_topics.put(merged)
    await core.save()
    return request.reply()


def _config(request: Request) -> TopicConfig:
    return TopicConfig(
        topic_name=request.text("topic"),
        read_queue_nums=request.number("readQueueNums"),
        write_queue_nums=request.number("writeQueueNums"),
        perm=request.number("perm"),
        topic_filter_type=request.text("topicFilterType", "SINGLE_TAG"),
        topic_sys_flag=request.number("topicSysFlag", 0),
        order=request.flag("order"),
    )


async def update_topics(core: Core, request: Request) -> Command:
    """Create or change several topics."""
    asked = await core.read(request, TopicConfigList)
    updated = []
    async for part in core.in_parts(asked.topic_config_list):
        for config in part:
            attributes = ",".join(
                key if key.startswith("-") else f"+{key.removeprefix('+')}={value}"
                for key, value in config.attributes.items()
            )
            updated.append(core.topics.update(config, attributes))
    await _keep(core, updated)
    return request.reply()


async def delete_topic(core: Core, request: Request) -> Command:
    """Delete a topic with its messages; one that is not there is deleted already."""
    if await core.delete_topic(request.text("topic")):
        await core.replication.settled(core.replication.port.end)
    return request.reply()


def get_topic_config(core: Core, request: Request) -> Command:
    """Describe a topic."""
    config = core.topics.get(request.text("topic"))
    if request.flag("lo") and (detail := core.static_topics.find(config.topic_name)) is not None:
        config = msgspec.structs.replace(config, mapping_detail=detail)
    return request.reply(body=dumps(config))


async def get_all_topic_config(core: Core, request: Request) -> Command:
    """Describe all topics."""
    version = DataVersion(timestamp=core.started, counter=core.topics.version)
    table = TopicConfigTable(
        topic_config_table={config.topic_name: config for config in core.topics.configs()},
        data_version=version,
        topic_queue_mapping_info_map=core.static_topics.infos(),
        topic_queue_mapping_detail_map=core.static_topics.details(),
        mapping_data_version=DataVersion(
            timestamp=core.started, counter=core.static_topics.version
        ),
    )
    return request.reply(body=await core.in_thread(dumps, table))


def get_topic_stats(core: Core, request: Request) -> Command:
    """Tell the offsets of a topic's queues, and when each got its last message."""
    topic = request.text("topic")
    config = core.topics.get(topic)
    table = {}
    for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
        bounds = core.store.bounds(topic, queue_id)
        empty = bounds.min_offset == bounds.max_offset
        table[QueueRef(topic, core.name, queue_id).key] = {
            "minOffset": bounds.min_offset,
            "maxOffset": bounds.max_offset,
            "lastUpdateTimestamp": 0
            if empty
            else core.store.store_time(topic, queue_id, bounds.max_offset - 1),
        }
    return request.reply(body=dumps({"offsetTable": table, "topicPutTps": 0.0}))


HANDLERS = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: update_topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: update_topics,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: update_static_topic,
    RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic,
    RequestCode.GET_TOPIC_CONFIG: get_topic_config,
    RequestCode.GET_ALL_TOPIC_CONFIG: get_all_topic_config,
    RequestCode.GET_TOPIC_STATS_INFO: get_topic_stats,
}
