"""Sends messages: one, a batch, by key, delayed, to a queue, or whole Arrow columns."""

from __future__ import annotations

import asyncio
import itertools
import time
import zlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from headrace import errors
from headrace.client.client import AsyncClient, Openable
from headrace.keys import encode_key, key_from_properties, partition_of
from headrace.protocol.batch_columns import encode_batch_columns, keys_properties
from headrace.protocol.codes import RequestCode, ResponseCode, SysFlag
from headrace.protocol.frames import Buffer, Command
from headrace.protocol.messages import (
    BatchBody,
    Message as Message,  # noqa: PLC0414
    encode_batch,
    encode_batches,
)
from headrace.protocol.properties import KEYS, UNIQ_KEY, UniqueKeys
from headrace.protocol.routes import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa


_Chooser = Callable[[], Awaitable[MessageQueue]]
_DEFAULT_GROUP = "headrace"
#: The message is stored; only its copy on disk or on a replica came too late to be waited for.
_STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)


@dataclass(frozen=True, slots=True)
class SendResult:
    """The place where a message, or a batch of them, is stored."""

    queue: MessageQueue
    #: Offset of the (first) message; those of a batch follow one another.
    offset: int
    #: Number of messages.
    count: int
    #: The broker's id of the message (of a batch: the ids, joined by commas), or empty.
    offset_id: str
    #: Id that the producer gave the message, the same in all tries; empty for a batch.
    message_id: str = ""
    #: Id of the transaction that the message belongs to, or empty.
    transaction_id: str = ""
    #: SUCCESS, or which of its copies came too late to be waited for: sending it again stores it
    #: twice, and not doing so may lose it with the broker's machine.
    status: ResponseCode = ResponseCode.SUCCESS


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """Counts of what a producer has sent so far."""

    #: Messages that a broker confirmed.
    messages: int
    #: Bytes of their bodies and properties.
    bytes: int
    #: Requests that a broker confirmed.
    requests: int


class AsyncProducer(Openable):
    """Sends messages.

    A send that fails in a way that may pass is tried again, so a message can arrive twice, but is
    not lost while ``ClientSettings.retry_timeout`` lasts.

    Parameters
    ----------
    client
        The connection to the cluster.
    group
        Name of the producer group, which brokers show in their listings.
    """

    def __init__(self, client: AsyncClient, group: str | None = None) -> None:
        self.client = client
        self.group = group or _DEFAULT_GROUP
        self._turn = itertools.count()
        self._unique_keys = UniqueKeys()
        self._messages = 0
        self._bytes = 0
        self._requests = 0

    def statistics(self) -> ProducerStatistics:
        """Count what was sent."""
        return ProducerStatistics(self._messages, self._bytes, self._requests)

    async def send(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        by_key: bool = True,
        once: bool = False,
    ) -> SendResult:
        """Send one message.

        Parameters
        ----------
        queue
            Where to; by default the queue of the message's sharding key, or else of its key.
            Without a key, or with ``by_key=False``, all queues take turns.
        once
            Try once: a failure that may pass leaves open whether the message has arrived, but it
            cannot have arrived twice.

        Raises
        ------
        MessageTooLargeError
            If it is larger than ``ClientSettings.max_message_size``.
        TopicNotFoundError
            If the topic does not exist.
        """
        return await self._send_one(message, queue, by_key=by_key, once=once)

    async def send_oneway(self, message: Message, queue: MessageQueue | None = None) -> None:
        """Send one message without an answer: fast, once, and nobody tells whether it arrived.

        Raises
        ------
        MessageTooLargeError
            If it is larger than ``ClientSettings.max_message_size``.
        TopicNotFoundError
            If the topic does not exist.
        """
        fields, body, _ = self._encoded(message, {UNIQ_KEY: self._unique_keys.take()})
        chosen = await self._chooser(message.topic, queue, _key_of(message))()
        broker = await self.client.broker_of(chosen)
        command = Command(
            RequestCode.SEND_MESSAGE_V2, fields | {"e": str(chosen.queue_id), "n": broker}, body
        )
        await self.client.send_oneway(await self.client.broker_address(broker), command)

    async def queue_for(self, topic: str, key: object) -> MessageQueue:
        """Return the queue of a topic that messages of a key go to.

        It depends only on the key and the topic's number of queues: every process and every
        release chooses the same one, see ``headrace.keys``.
        """
        return await self._chooser(topic, None, encode_key(key))()

    async def send_batch(
        self, messages: Sequence[Message], queue: MessageQueue | None = None
    ) -> SendResult:
        """Send messages of one topic to one queue in one request: all of them arrive, or none.

        Raises
        ------
        ConfigurationError
            If there are none, or their topics differ.
        MessageTooLargeError
            If together they are larger than ``ClientSettings.max_message_size``.
        """
        topics = {message.topic for message in messages}
        if len(topics) != 1:
            raise errors.ConfigurationError(
                f"a batch is for one topic, not for {sorted(topics) or 'no message at all'}",
                hint="send one batch per topic",
            )
        (topic,) = topics
        _refuse_delayed(topic, messages)
        body = encode_batch(messages)
        self._check_size(topic, len(body))
        choose = self._chooser(topic, queue, None)
        return await self._send_batch(topic, choose, body, len(messages), messages[0].born)

    async def send_many(self, messages: Iterable[Message]) -> list[SendResult]:
        """Send messages in batches, each message to the queue of its key; one result per request.

        Messages of a key, like all messages of a queue, keep the order in which they are given;
        queues are sent to at the same time.  Messages without a key go to all queues in turn,
        request by request.  Requests are filled up to ``ClientSettings.batch_size`` with messages
        of the same time ``born``; each arrives whole or not at all.

        Raises
        ------
        ConfigurationError
            If a message is delayed.
        MessageTooLargeError
            If one is larger than ``ClientSettings.max_message_size``; then none was sent.
        TopicNotFoundError
            If a topic does not exist.
        HeadraceError
            If sending to a queue failed: the first of its messages may have arrived, and those
            for other queues have.

        Examples
        --------
        >>> async def report(client: AsyncClient, degrees: dict[str, float]) -> None:
        ...     async with AsyncProducer(client) as producer:
        ...         await producer.send_many(
        ...             Message(topic="degrees", keys=room, body=str(value).encode())
        ...             for room, value in degrees.items()
        ...         )
        """
        queues: dict[str, list[MessageQueue]] = {}
        lanes: dict[tuple[str, MessageQueue | None], list[Message]] = defaultdict(list)
        for message in messages:
            topic, key, queue = message.topic, _key_of(message), None
            if key is not None:
                if topic not in queues:
                    queues[topic] = await self._writable(topic)
                queue = queues[topic][partition_of(key, len(queues[topic]))]
            lanes[topic, queue].append(message)
        batches = {lane: self._batches(lane[0], some) for lane, some in lanes.items()}
        sends = [self._send_in_order(*lane, some) for lane, some in batches.items()]
        # All of them end, whatever becomes of one: nothing is sent after this has returned.
        sent = await asyncio.gather(*sends, return_exceptions=True)
        results: list[SendResult] = []
        for one in sent:
            if isinstance(one, BaseException):
                raise one
            results += one
        return results

    async def send_columns(
        self,
        queue: MessageQueue,
        bodies: pa.BinaryArray,
        keys: pa.BinaryArray | None = None,
        *,
        properties: pa.BinaryArray | None = None,
        born: int | None = None,
        once: bool = False,
    ) -> list[SendResult]:
        """Send an Arrow column of bodies to one queue, in order, without an object per message.

        Requests are filled up to ``ClientSettings.batch_size``; each arrives whole or not at all.

        Parameters
        ----------
        keys
            The KEYS property of each message; null if it has none.
        properties
            All properties of each message, raw, instead of ``keys``.
        born
            When the messages were made, in ms since 1970; now, if not given.
        once
            Try each request once: after a failure that may pass, the first of the messages may
            have arrived, none of them twice.

        Raises
        ------
        MessageTooLargeError
            If one of them is larger than ``ClientSettings.max_message_size``; those before it
            may have been sent.
        """
        if keys is not None:
            if properties is not None:
                raise errors.ConfigurationError("send_columns takes keys or properties, not both")
            properties = keys_properties(keys)
        choose = _fixed(queue)
        results: list[SendResult] = []
        for batch in encode_batch_columns(bodies, properties, self.client.settings.batch_size):
            self._check_size(queue.topic, len(batch.body))
            results.append(
                await self._send_batch(
                    queue.topic, choose, batch.body, batch.count, born, once=once
                )
            )
        return results

    async def _send_one(
        self,
        message: Message,
        queue: MessageQueue | None,
        extra: Mapping[str, str] | None = None,
        *,
        by_key: bool = True,
        flag: int = 0,
        once: bool = False,
    ) -> SendResult:
        # All tries carry the same id, so that a message that arrived twice can be recognised.
        unique_key = self._unique_keys.take()
        fields, body, size = self._encoded(message, {**(extra or {}), UNIQ_KEY: unique_key}, flag)
        choose = self._chooser(message.topic, queue, _key_of(message) if by_key else None)
        result = await self._send(
            choose, Command(RequestCode.SEND_MESSAGE_V2, fields, body), 1, size, once=once
        )
        return replace(result, message_id=unique_key)

    def _encoded(
        self, message: Message, extra: Mapping[str, str], flag: int = 0
    ) -> tuple[dict[str, str], bytes, int]:
        """Return fields and body of the request that sends a message, and the message's size."""
        body, compressed = self._compressed(message.body)
        encoded = message.encoded_properties(extra)
        size = len(body) + len(encoded)
        self._check_size(message.topic, size)
        fields = self._fields(message.topic, flag | compressed, message.born, encoded.decode())
        fields["h"] = str(message.flag)
        return fields, body, size

    def _batches(self, topic: str, messages: list[Message]) -> list[tuple[BatchBody, int | None]]:
        _refuse_delayed(topic, messages)
        batches = [
            (batch, born)
            for born, run in itertools.groupby(messages, attrgetter("born"))
            for batch in encode_batches(run, self.client.settings.batch_size)
        ]
        for batch, _ in batches:
            self._check_size(topic, len(batch.body))
        return batches

    async def _send_in_order(
        self, topic: str, queue: MessageQueue | None, batches: list[tuple[BatchBody, int | None]]
    ) -> list[SendResult]:
        return [
            await self._send_batch(
                topic, self._chooser(topic, queue, None), batch.body, batch.count, born
            )
            for batch, born in batches
        ]

    async def _send_batch(
        self,
        topic: str,
        choose: _Chooser,
        body: Buffer,
        count: int,
        born: int | None,
        *,
        once: bool = False,
    ) -> SendResult:
        fields = self._fields(topic, 0, born, "")
        fields["m"] = "true"
        command = Command(RequestCode.SEND_BATCH_MESSAGE, fields, body)
        return await self._send(choose, command, count, len(body), once=once)

    async def _send(
        self,
        choose: _Chooser,
        command: Command,
        count: int,
        size: int,
        *,
        once: bool = False,
    ) -> SendResult:
        async def attempt() -> SendResult:
            queue = await choose()
            broker = await self.client.broker_of(queue)
            ext = command.ext | {"e": str(queue.queue_id), "n": broker}
            answer = await self.client.ask_queue_once(
                queue, Command(command.code, ext, command.body), expect=_STORED
            )
            return _result(queue, answer, count)

        result = await attempt() if once else await self.client.retry(attempt)
        self._messages += count
        self._bytes += size
        self._requests += 1
        return result

    def _fields(self, topic: str, flag: int, born: int | None, properties: str) -> dict[str, str]:
        fields = {
            "a": self.group,
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "f": str(flag),
            "g": str(time.time_ns() // 1_000_000 if born is None else born),
            "h": "0",
            "j": "0",
            "k": "false",
            "m": "false",
        }
        return fields | {"i": properties} if properties else fields

    def _chooser(self, topic: str, queue: MessageQueue | None, key: bytes | None) -> _Chooser:
        if queue is not None:
            return _fixed(queue)
        number = next(self._turn) if key is None else None

        async def choose() -> MessageQueue:
            nonlocal number
            queues = await self._writable(topic)
            if number is None:
                assert key is not None
                return queues[partition_of(key, len(queues))]
            # The next try goes to another queue, which may be on a broker that works.
            number += 1
            return queues[(number - 1) % len(queues)]

        return choose

    async def _writable(self, topic: str) -> list[MessageQueue]:
        queues = await self.client.queues(topic, for_="write")
        if not queues:
            raise errors.TopicNotFoundError(
                f"topic {topic!r} has no queue that takes messages",
                hint="check its permissions and that its broker runs",
            )
        return queues

    def _compressed(self, body: bytes) -> tuple[bytes, int]:
        least = self.client.settings.compress_from
        if least is None or len(body) < least:
            return body, 0
        return zlib.compress(body, 5), SysFlag.COMPRESSED | SysFlag.ZLIB

    def _check_size(self, topic: str, size: int) -> None:
        limit = self.client.settings.max_message_size
        if size > limit:
            raise errors.MessageTooLargeError(
                f"a message or batch for topic {topic!r} has {size} bytes, "
                f"{limit} are allowed (ClientSettings.max_message_size)",
                hint="send less at once, compress it (ClientSettings.compress_from), or raise the "
                "limit here and on the broker (maxMessageSize)",
            )


def _key_of(message: Message) -> bytes | None:
    if message.sharding_key:
        return encode_key(message.sharding_key)
    keys = {KEYS: message.keys} if message.keys else {}
    key = key_from_properties({**message.properties, **keys})
    return None if key is None else encode_key(key)


def _refuse_delayed(topic: str, messages: Iterable[Message]) -> None:
    if any(message.is_delayed for message in messages):
        raise errors.ConfigurationError(
            f"a batch for topic {topic!r} holds a delayed message",
            hint="send delayed messages one by one: brokers refuse them in batches",
        )


def _fixed(queue: MessageQueue) -> _Chooser:
    async def choose() -> MessageQueue:
        return queue

    return choose


def _result(queue: MessageQueue, answer: Command, count: int) -> SendResult:
    try:
        queue_id, offset = int(answer.ext["queueId"]), int(answer.ext["queueOffset"])
    except (KeyError, ValueError):
        raise errors.ProtocolError(
            f"the answer to a send names no queue and offset: {answer.ext}"
        ) from None
    stored = MessageQueue(queue.topic, queue.broker, queue_id)
    return SendResult(
        stored,
        offset,
        count,
        answer.ext.get("msgId", ""),
        transaction_id=answer.ext.get("transactionId", ""),
        status=ResponseCode(answer.code),
    )
