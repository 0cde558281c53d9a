"""Giving a message back to the broker: for another try later, or as a dead letter."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.client.outcomes import Outcome, Retry, delay_level_of
from headrace.client.producer import AsyncProducer
from headrace.errors import BrokerError
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.groups import retry_topic
from headrace.protocol.messages import Message
from headrace.protocol.properties import (
    DELAY,
    MAX_RECONSUME_TIMES,
    ORIGIN_MESSAGE_ID,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TIMER_DELAY_MS,
    TRAN_MSG,
    UNIQ_KEY,
)
from headrace.protocol.routes import LOGICAL_BROKER

if TYPE_CHECKING:
    from headrace.client.client import AsyncClient
    from headrace.client.queues import MessageQueue
    from headrace.protocol.messages import StoredMessage

__all__ = ["SendBack"]

_DEAD = -1
#: Level of the first retry on the broker's ladder, as its users know it: 10 s.
_FIRST_LEVEL = 3
_MS = timedelta(milliseconds=1)


class SendBack(AsyncProducer):
    """Sends messages of a group back, as RocketMQ's push consumers do.

    Caller: AsyncPushConsumer.
    """

    def __init__(self, client: AsyncClient, group: str, max_times: int) -> None:
        super().__init__(client, "CLIENT_INNER_PRODUCER")
        self._consumers = group
        self._max_times = max_times

    async def give_back(
        self, queue: MessageQueue, message: StoredMessage, outcome: Outcome
    ) -> None:
        """Have a message come again, or put it among the dead letters.

        Raises
        ------
        HeadraceError
            If neither way worked: the message is still the caller's.
        """
        level = _level(outcome)
        # A broker does not know where in a static topic the message lies, nor times between levels.
        if level is not None and queue.broker != LOGICAL_BROKER:
            try:
                await self._ask_broker(queue, message, level)
            except BrokerError:
                # It may have lost the message, or not have the topic: bring it there as a new one.
                pass
            else:
                return
        await self._send_anew(message, outcome)

    async def _ask_broker(self, queue: MessageQueue, message: StoredMessage, level: int) -> None:
        ext = {
            "offset": str(message.position),
            "group": self._consumers,
            "delayLevel": str(level),
            "originMsgId": message.unique_key or message.offset_id,
            "originTopic": message.topic,
            "unitMode": "false",
            "maxReconsumeTimes": str(self._max_times),
        }
        await self.client.ask_queue(queue, lambda: Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext))

    async def _send_anew(self, message: StoredMessage, outcome: Outcome) -> None:
        properties = dict(message.properties)
        for name in (DELAY, TIMER_DELAY_MS, TRAN_MSG, RECONSUME_TIME, MAX_RECONSUME_TIMES):
            properties.pop(name, None)
        origin = message.unique_key or message.offset_id
        properties.setdefault(ORIGIN_MESSAGE_ID, origin)
        properties[RETRY_TOPIC] = message.topic
        times = message.reconsume_times + 1
        if isinstance(outcome, Retry):
            properties |= _wait(outcome, message.reconsume_times)
        else:
            # The broker puts what has come too often among the dead letters.
            times = self._max_times + 1
        again = Message(
            topic=retry_topic(self._consumers),
            body=message.body,
            properties=properties,
            born=message.born,
            flag=message.flag,
        )
        fields, body, size = self._encoded(
            again, {UNIQ_KEY: origin} if not message.unique_key else {}
        )
        fields |= {"j": str(times), "l": str(self._max_times)}
        choose = self._chooser(again.topic, None, None)
        await self._send(choose, Command(RequestCode.SEND_MESSAGE_V2, fields, body), 1, size)


def _level(outcome: Outcome) -> int | None:
    """Delay level that tells a broker what to do; None: there is none."""
    if not isinstance(outcome, Retry):
        return _DEAD
    return outcome.level if outcome.delay is None else delay_level_of(outcome.delay)


def _wait(retry: Retry, times: int) -> dict[str, str]:
    if retry.delay is None:
        return {DELAY: str(retry.level or _FIRST_LEVEL + times)}
    level = delay_level_of(retry.delay)
    return {DELAY: str(level)} if level is not None else {TIMER_DELAY_MS: str(retry.delay // _MS)}
