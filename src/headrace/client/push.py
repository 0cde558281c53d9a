"""Consumers that call a listener, with retries and dead letters, as RocketMQ's push consumers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.client._listening import Listener, Listening
from headrace.client._push_engine import PushEngine
from headrace.client.client import AsyncClient, Openable
from headrace.client.deliveries import ABANDONED, Delivery, Outcome, Retry
from headrace.client.push_options import PushOptions, PushStatistics
from headrace.errors import ConfigurationError
from headrace.protocol.groups import ALL_TAGS, retry_topic

if TYPE_CHECKING:
    from headrace.protocol.messages import StoredMessage
    from headrace.protocol.routes import MessageQueue


logger = logging.getLogger(__name__)


class AsyncPushConsumer(Openable):
    """A member of a consumer group that brings each message to a listener.

    Members here and in Java share the queues.  What the listener has processed is committed
    without holes; what fails comes again later, and is a dead letter after too many tries.  A
    member that dies loses nothing: what it had not processed goes to another one, and so a message
    can come twice.

    Parameters
    ----------
    client
        A client of the cluster; the member has a connection of its own.
    group
        Name of the group; all its members must have the same subscriptions.
    subscriptions
        Topics, or tags by topic (``{"lines": "red || blue"}``).
    listener
        A function of one message, plain (called on threads) or ``async``.  It returns None when
        the message is processed, ``Retry(...)``, or ``DEAD_LETTER``; an exception is logged, and
        counts as ``Retry()``.  Without a listener, iterate over the consumer.
    options
        How to work.

    Examples
    --------
    >>> async def serve(client: AsyncClient) -> None:
    ...     async def listener(message: StoredMessage) -> None:
    ...         print(message.body)
    ...
    ...     await AsyncPushConsumer(client, "printers", ["lines"], listener).run()
    """

    def __init__(
        self,
        client: AsyncClient,
        group: str,
        subscriptions: Sequence[str] | Mapping[str, str],
        listener: Listener | None = None,
        options: PushOptions | None = None,
    ) -> None:
        if not subscriptions or isinstance(subscriptions, str):
            raise ConfigurationError(
                f"group {group!r} subscribes to no topic",
                hint='give a list of topics, or tags by topic: {"lines": "*"}',
            )
        # Brokers tell the members of a group apart by their connections.
        self.client = client.sibling()
        self.group = group
        self.options = options or PushOptions()
        self.subscriptions = _subscriptions(subscriptions, group, self.options)
        self._listener = listener
        self._deliveries: asyncio.Queue[Delivery | None] = asyncio.Queue()
        self._engine: PushEngine | None = None
        self._ended = asyncio.Event()
        self._failure: BaseException | None = None
        self._closing: asyncio.Task[None] | None = None

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self.messages()

    async def start(self) -> None:
        """Join the group, and begin to process in the background.

        Raises
        ------
        TopicNotFoundError
            If a topic does not exist.
        """
        if self._engine is not None:
            return
        options = self.options
        listening = Listening(
            self._listener or self._hand_over,
            f"group {self.group!r}",
            options.concurrency,
            options.consume_timeout,
            Retry(options.retry_delay),
        )
        self._engine = PushEngine(
            self.client,
            self.group,
            self.subscriptions,
            listening,
            options,
            on_failure=self._fail,
        )
        try:
            await self._engine.start()
        except BaseException:
            await self.close()
            raise

    async def run(self) -> None:
        """Start, and process until ``close`` is called or the task is cancelled.

        Raises
        ------
        TopicNotFoundError
            If a topic does not exist.
        """
        await self.start()
        try:
            await self._ended.wait()
        finally:
            await self.close()
        self._raise_failure()

    async def messages(self) -> AsyncGenerator[Delivery, None]:
        """Yield message after message, without a listener; each must be settled.

        At most ``PushOptions.concurrency`` messages are out at once.

        Raises
        ------
        ConfigurationError
            If there is a listener, which gets the messages.
        """
        if self._listener is not None:
            raise ConfigurationError(
                f"group {self.group!r} has a listener that gets its messages",
                hint="iterate over a consumer that was made without one",
            )
        await self.start()
        while (delivery := await self._deliveries.get()) is not None:
            yield delivery
        self._raise_failure()

    async def close(self) -> None:
        """Finish what is worked on, commit, and leave the group."""
        await asyncio.shield(self.close_soon())

    def close_soon(self) -> asyncio.Task[None]:
        """Begin to close, for a listener that must not wait for its own end."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        return self._closing

    def statistics(self) -> PushStatistics | None:
        """Return what this member does and has done; None before it was started."""
        return None if self._engine is None else self._engine.statistics()

    def assignment(self) -> list[MessageQueue]:
        """List the queues that this member reads now, those of the retry topic too."""
        return [] if self._engine is None else sorted(self._engine.held())

    async def _close(self) -> None:
        self._ended.set()
        while not self._deliveries.empty():
            delivery = self._deliveries.get_nowait()
            if delivery is not None:
                delivery.abandon()
        self._deliveries.put_nowait(None)
        if self._engine is not None:
            await self._engine.stop(self.options.stop_timeout)
        await self.client.close()

    async def _hand_over(self, message: StoredMessage) -> Outcome:
        if self._ended.is_set():
            return ABANDONED
        delivery = Delivery(message)
        self._deliveries.put_nowait(delivery)
        return await delivery.settled()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self.close_soon()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _subscriptions(
    told: Sequence[str] | Mapping[str, str], group: str, options: PushOptions
) -> dict[str, str]:
    """Return tags by topic, with the group's retry topic, as RocketMQ's members have it."""
    found = dict(told) if isinstance(told, Mapping) else dict.fromkeys(told, ALL_TAGS)
    return found if options.broadcasting else found | {retry_topic(group): ALL_TAGS}
