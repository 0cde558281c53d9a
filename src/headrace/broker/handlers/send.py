"""Requests that store messages: one by one and in batches."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from headrace.broker.drafts import Draft
from headrace.broker.half_messages.book import Outcome
from headrace.broker.half_messages.service import HalfMessageEnd
from headrace.broker.requests import Request, failure
from headrace.broker.rewriting import is_special
from headrace.broker.topics import CLOSED_TOPICS, RETRY_PREFIX
from headrace.errors import (
    InvalidParameterError,
    MessageRejectedError,
    NotFoundError,
    NotReplicatedError,
    StoreError,
)
from headrace.protocol.codes import RequestCode, ResponseCode, SysFlag
from headrace.protocol.columns import decode_columns
from headrace.protocol.properties import (
    KEYS,
    MAX_PROPERTIES,
    UNIQ_KEY,
    WAIT,
    UniqueKeys,
    decode_properties,
)
from headrace.protocol.records import RecordFields, Records, batch_to_records, encode_record
from headrace.protocol.routes import TopicConfig, keeps_newest
from headrace.store import QueueAppend
from headrace.store.keys import KeyQuery

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.static_topics import LogicalQueue
    from headrace.broker.waiting import AppendOutcome
    from headrace.protocol.frames import Buffer, Command


_OUTCOMES = {
    int(SysFlag.COMMITTED): Outcome.COMMITTED,
    int(SysFlag.ROLLED_BACK): Outcome.ROLLED_BACK,
}


async def end_transaction(core: Core, request: Request) -> Command:
    """Deliver a half message, or drop it; a producer that does not know is asked again."""
    outcome = _OUTCOMES.get(request.number("commitOrRollback"))
    if outcome is not None:
        ending = HalfMessageEnd(
            request.text("producerGroup"),
            request.number("tranStateTableOffset"),
            request.number("commitLogOffset"),
            outcome,
            request.flag("fromTransactionCheck"),
            request.command.ext.get("topic"),
        )
        await core.half_messages.end(ending)
    return request.reply()


_MOST_MATCHES = 64


def view_message(core: Core, request: Request) -> Command:
    """Return the message at a position of the commit log."""
    try:
        record = core.store.read_at(request.number("offset"))
    except NotFoundError as error:
        return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
    return request.reply(body=record)


async def query_message(core: Core, request: Request) -> Command:
    """Find messages of a topic by a word of their keys or by their unique id, the newest first."""
    topic = request.text("topic")
    core.topics.get(topic)
    query = KeyQuery(
        topic=topic,
        word=request.text("key"),
        unique=request.flag("_UNIQUE_KEY_QUERY"),
        begin=request.number("beginTimestamp"),
        end=request.number("endTimestamp"),
        limit=max(1, min(request.number("maxNum"), _MOST_MATCHES)),
    )
    found = await core.work.in_thread(core.store.keys.find, query)
    if not found:
        remark = "can not find message, maybe time range not correct"
        return request.reply(ResponseCode.QUERY_NOT_FOUND, remark)
    ext = {
        "indexLastUpdateTimestamp": str(core.now()),
        "indexLastUpdatePhyoffset": str(core.store.statistics().end),
    }
    return request.reply(ext=ext, body=b"".join(found))


#: Bytes of a batch whose messages, if they are small, take long to cut apart.
_LONG_BATCH = 256 << 10
_LETTERS = {
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "maxReconsumeTimes": "l",
    "batch": "m",
}
_NAMES = {name: name for name in _LETTERS}

_UNIQ_KEY = re.compile(rf"(?:^|\x02){UNIQ_KEY}\x01([^\x02]+)")
_uniq_keys = UniqueKeys()
_OWN_TO_EACH = re.compile(rf"(?:^|(?<=\x02))(?:{UNIQ_KEY}|{WAIT})\x01[^\x02]*(?:\x02|$)")


@dataclass(frozen=True, slots=True)
class _Fields:
    """The header of a send request, by whichever names it came."""

    topic: str
    default_topic: str
    default_queues: int
    queue_id: int
    sys_flag: int
    born: int
    flag: int
    properties: str
    reconsume_times: int
    most_times: int | None
    is_batch: bool


def _fields(request: Request, names: dict[str, str]) -> _Fields:
    number = request.number
    most_times = number(names["maxReconsumeTimes"], -1)
    return _Fields(
        topic=request.text(names["topic"]),
        default_topic=request.text(names["defaultTopic"], ""),
        default_queues=number(names["defaultTopicQueueNums"], 0),
        queue_id=number(names["queueId"]),
        sys_flag=number(names["sysFlag"]),
        born=number(names["bornTimestamp"]),
        flag=number(names["flag"]),
        properties=request.text(names["properties"], ""),
        reconsume_times=number(names["reconsumeTimes"], 0),
        most_times=most_times if most_times >= 0 else None,
        is_batch=request.flag(names["batch"]),
    )


def _send(names: dict[str, str], core: Core, request: Request) -> None:
    """Store what a send request carries; answered when the store has it."""
    fields = _fields(request, names)
    body = request.command.payload
    _check(core, fields, body)
    if fields.topic.startswith(RETRY_PREFIX):
        core.retry_topic(fields.topic.removeprefix(RETRY_PREFIX))
    if fields.topic not in core.topics:
        core.check_new_topic(fields.topic)
    template = fields.default_topic if core.settings.create_topics else ""
    config = core.topics.for_sending(fields.topic, template, fields.default_queues)
    if core.tables.is_ready(config.topic_name):
        _store(core, request, fields, config)
        return
    # Its number of queues would be known from nowhere else after a crash; and what is sent behind a
    # long batch is stored behind it.
    request.peer.hold(len(body))
    core.tables.once_ready(config.topic_name, partial(_store_held, core, request, fields))


def _store_held(core: Core, request: Request, fields: _Fields, error: StoreError | None) -> None:
    """Store a message that has waited for its topic, which may have been deleted meanwhile."""
    request.peer.release(len(request.command.payload))
    try:
        if error is not None:
            raise error
        _store(core, request, fields, core.topics.get(fields.topic))
    except Exception as why:  # noqa: BLE001  (the client is told, whatever it is)
        request.answer(core.refusals.of(request, why))


def _store(core: Core, request: Request, fields: _Fields, config: TopicConfig) -> None:
    static = core.static_topics.locate(fields.topic, fields.queue_id)
    queue_id = _choose_queue(config, static.queue_id if static else fields.queue_id)
    if fields.is_batch and len(request.command.payload) > _LONG_BATCH:
        core.tables.begin_busy(fields.topic)
        core.work.start_task(_store_large(core, request, fields, queue_id, static))
    else:
        _keep(core, request, config, static, queue_id, _append(core, fields, queue_id, request))


async def _store_large(
    core: Core, request: Request, fields: _Fields, queue_id: int, static: LogicalQueue | None
) -> None:
    """Store a batch whose messages take long to cut apart, which holds up no other topic."""
    size = len(request.command.payload)
    request.peer.hold(size)
    try:
        made = await core.work.in_thread(_append, core, fields, queue_id, request)
        _keep(core, request, core.topics.get(fields.topic), static, queue_id, made)
    except Exception as why:  # noqa: BLE001  (the client is told, whatever it is)
        request.answer(core.refusals.of(request, why))
    finally:
        request.peer.release(size)
        core.tables.end_busy(fields.topic)


def _keep(
    core: Core,
    request: Request,
    config: TopicConfig,
    static: LogicalQueue | None,
    queue_id: int,
    made: tuple[str, QueueAppend],
) -> None:
    uniq_key, append = made
    if keeps_newest(config.attributes):
        _require_keys(config.topic_name, append.records)
    size = len(request.command.payload)
    request.peer.hold(size)
    sent = _Sent(append, queue_id, uniq_key, size, static)
    core.append([append], partial(_stored, core, request, sent))


@dataclass(frozen=True, slots=True)
class _Sent:
    """What was handed to the store, and what its sender is to hear."""

    append: QueueAppend
    #: The queue that was asked for: a message that waits lies in another one.
    queue_id: int
    #: Empty for a batch.
    uniq_key: str
    size: int
    static: LogicalQueue | None


def _append(
    core: Core, fields: _Fields, queue_id: int, request: Request
) -> tuple[str, QueueAppend]:
    """Make the records; the unique id of a single message comes first, as it may be made here."""
    body, host = request.command.payload, request.peer.address
    special = is_special(fields.topic, fields.sys_flag, fields.properties)
    if fields.is_batch:
        if special:
            message = f"a batch for topic {fields.topic!r} asks for a delay or a transaction:"
            raise MessageRejectedError(f"{message} only single messages can")
        core.check_batch(body, fields.topic, fields.properties)
        return "", QueueAppend(fields.topic, queue_id, _batch(fields, queue_id, body, host))
    found = _UNIQ_KEY.search(fields.properties)
    uniq_key = found[1] if found else _uniq_keys.take()
    if special:
        draft = _draft(fields, queue_id, body, host, uniq_key)
        return uniq_key, core.rewriting.rewritten(draft, fields.most_times).append()
    properties = fields.properties
    if not found:
        properties = f"{UNIQ_KEY}\x01{uniq_key}\x02{properties}"
    records = _single(fields, queue_id, body, host, properties)
    return uniq_key, QueueAppend(fields.topic, queue_id, records)


def _stored(core: Core, request: Request, sent: _Sent, outcome: AppendOutcome) -> None:
    request.peer.release(sent.size)
    error = outcome.error
    # Stored, but on too few followers: RocketMQ's clients want to know where, all the same.
    short = isinstance(error, NotReplicatedError) and bool(outcome.results)
    if error is not None and not short:
        assert isinstance(error, Exception)
        request.answer(failure(request, error))
        return
    (result,) = outcome.results
    static, offset = sent.static, result.first_offset
    if sent.append.topic in CLOSED_TOPICS:
        core.delays.wake()
    elif static is not None:
        offset = static.logical(offset)
    ext = {
        "msgId": _offset_ids(core, sent.append.records, result.first_position),
        "queueId": str(static.global_id if static else sent.queue_id),
        "queueOffset": str(offset),
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    if sent.uniq_key:
        ext["transactionId"] = sent.uniq_key
    answer = request.reply(ext=ext)
    if isinstance(error, NotReplicatedError):
        answer.code, answer.remark = error.number or answer.code, str(error)
    request.answer(answer)


def _offset_ids(core: Core, records: Records, first_position: int) -> str:
    """Write the ids of messages, comma-joined: host, port and position in hex."""
    if len(records.starts) == 1:
        return f"{core.id_prefix}{first_position:016X}"
    positions = np.asarray(records.starts) + first_position
    digits = positions.astype(">i8").tobytes().hex().upper().encode()
    cells = np.empty((len(positions), 33), np.uint8)
    cells[:, :16] = np.frombuffer(core.id_prefix.encode(), np.uint8)
    cells[:, 16:32] = np.frombuffer(digits, np.uint8).reshape(-1, 16)
    cells[:, 32] = ord(",")
    return cells.tobytes()[:-1].decode("ascii")


def _check(core: Core, fields: _Fields, body: Buffer) -> None:
    limit = core.settings.max_message_size
    if len(body) > limit:
        what = "batch" if fields.is_batch else "message"
        message = f"a {what} of {len(body)} bytes for topic {fields.topic!r} is too large:"
        hint = "Send less at once, or start the broker with a larger --max-message-size."
        raise MessageRejectedError(f"{message} the limit is {limit} bytes", hint=hint)
    if len(fields.properties) > MAX_PROPERTIES:
        message = f"the properties of a message for topic {fields.topic!r} take more than"
        raise MessageRejectedError(f"{message} {MAX_PROPERTIES} bytes")
    state = core.jobs.state(fields.topic)
    # A job that opens at the broker names its driver there; where it is not, commits are messages.
    if state is not None and state.driver:
        message = f"topic {fields.topic!r} takes the commits of job {state.record.job!r}, and no"
        raise InvalidParameterError(f"{message} messages", hint="Send to a topic of your own.")


def _choose_queue(config: TopicConfig, queue_id: int) -> int:
    if queue_id < 0:
        return random.randrange(config.write_queue_nums)
    count = max(config.read_queue_nums, config.write_queue_nums)
    if queue_id >= count:
        message = f"topic {config.topic_name!r} has {count} queues, queue {queue_id} is none of"
        raise InvalidParameterError(f"{message} them")
    return queue_id


def _batch(fields: _Fields, queue_id: int, body: Buffer, host: tuple[str, int]) -> Records:
    # Java puts the whole batch's id into the header; each message has an id of its own.
    extra = _OWN_TO_EACH.sub("", fields.properties).encode()
    return batch_to_records(
        body,
        fields.topic,
        queue_id,
        fields.born,
        fields.sys_flag,
        fields.flag,
        host,
        extra,
    )


def _single(
    fields: _Fields, queue_id: int, body: Buffer, host: tuple[str, int], properties: str
) -> Records:
    numbers = RecordFields(
        queue_id=queue_id,
        born=fields.born,
        born_host=host,
        flag=fields.flag,
        sys_flag=fields.sys_flag,
        reconsume_times=fields.reconsume_times,
    )
    return encode_record(fields.topic, body, properties.encode(), numbers)


def _draft(
    fields: _Fields, queue_id: int, body: Buffer, host: tuple[str, int], uniq_key: str
) -> Draft:
    return Draft(
        topic=fields.topic,
        queue_id=queue_id,
        body=body,
        properties={UNIQ_KEY: uniq_key, **decode_properties(fields.properties.encode())},
        born=fields.born,
        born_host=host,
        flag=fields.flag,
        sys_flag=fields.sys_flag,
        reconsume_times=fields.reconsume_times,
    )


def _require_keys(topic: str, records: Records) -> None:
    keys = decode_columns(records.data, unpack=False).property(KEYS).to_pylist()
    # Java's isBlank takes spaces for nothing.
    if not all(key and key.strip() for key in keys):
        message = f"Required message key is missing: topic {topic!r} keeps the newest message of"
        raise MessageRejectedError(f"{message} each key", hint="Set the message's keys.")


_send_letters = partial(_send, _LETTERS)


HANDLERS = {
    RequestCode.SEND_MESSAGE: partial(_send, _NAMES),
    RequestCode.SEND_MESSAGE_V2: _send_letters,
    RequestCode.SEND_BATCH_MESSAGE: _send_letters,
    RequestCode.VIEW_MESSAGE_BY_ID: view_message,
    RequestCode.QUERY_MESSAGE: query_message,
    RequestCode.END_TRANSACTION: end_transaction,
}
