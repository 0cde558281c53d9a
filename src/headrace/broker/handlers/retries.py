"""Requests about messages that come later: sent back by consumers, or waiting for their time."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from headrace.broker.network.admission import check_group
from headrace.broker.retries import SendBack, sent_back
from headrace.broker.rewriting import with_delay
from headrace.broker.topics import RETRY_PREFIX
from headrace.errors import NoPermissionError, NotFoundError
from headrace.protocol.codes import Perm, RequestCode, ResponseCode
from headrace.protocol.messages import decode_messages
from headrace.protocol.routes import DataVersion, dumps

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command

__all__ = ["HANDLERS"]


async def send_back(core: Core, request: Request) -> Command:
    """Give a message to a group again later, or keep it as a dead letter."""
    group = request.text("group")
    check_group(core, group)
    config = core.groups.get(group)
    if config.retry_queue_nums <= 0:
        return request.reply()
    topic = core.retry_topic(group)
    if not topic.perm & Perm.WRITE:
        raise NoPermissionError(f"the topic[{RETRY_PREFIX}{group}] sending message is forbidden")
    position = request.number("offset")
    try:
        record = core.store.read_at(position)
    except NotFoundError as error:
        remark = f"look message by offset failed, {position}: {error}"
        return request.reply(ResponseCode.SYSTEM_ERROR, remark)
    (message,) = decode_messages(record, unpack=False)
    origin = request.text("originTopic", message.topic)
    if message.topic not in (origin, RETRY_PREFIX + group):
        # Whoever may read one topic must not get a copy of another one's messages.
        raise NoPermissionError(f"the message at {position} is not of topic {origin!r}")
    asked = SendBack(
        group,
        request.number("maxReconsumeTimes", config.retry_max_times),
        level=request.number("delayLevel"),
        queue_id=random.randrange(config.retry_queue_nums),
    )
    draft = sent_back(message, asked)
    core.ensure_topic(draft.topic, queues=1)
    await core.put(with_delay(core, draft))
    return request.reply()


def get_delay_offsets(core: Core, request: Request) -> Command:
    """Tell how far the delivery of delayed messages has come, by level."""
    version = DataVersion(timestamp=core.started, counter=core.store.statistics().units)
    levels = core.delays.scheduler.progress.levels
    table = {str(level): offset for level, offset in sorted(levels.items())}
    return request.reply(body=dumps({"offsetTable": table, "dataVersion": version}))


HANDLERS = {
    RequestCode.CONSUMER_SEND_MSG_BACK: send_back,
    RequestCode.GET_ALL_DELAY_OFFSET: get_delay_offsets,
}
