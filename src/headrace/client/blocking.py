"""The blocking face: the same classes without ``async``, run on one background loop per process.

Every method does what the method of the same name does in the asynchronous class.
All objects may be used from several threads, and in a child process after a fork.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from headrace.client._blocking import Twin, blocking, blocking_iterator, same
from headrace.client._loop import loop_thread
from headrace.client.admin import AsyncAdmin
from headrace.client.client import AsyncClient
from headrace.client.groups import AsyncGroupConsumer, GroupOptions
from headrace.client.jobs import AsyncJobs
from headrace.client.producer import AsyncProducer
from headrace.client.pulling import AsyncPullConsumer
from headrace.client.push import AsyncPushConsumer
from headrace.client.tables import AsyncTableReader, AsyncTableWriter
from headrace.client.transactions import AsyncTransactionProducer, LocalTransactionState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from headrace.client._listening import Listener
    from headrace.client.push_options import PushOptions
    from headrace.client.queues import MessageQueue
    from headrace.client.settings import ClientSettings
    from headrace.client.transactions import Check, Transaction
    from headrace.protocol.messages import Message

__all__ = ["Admin", "Client", "GroupConsumer", "Jobs", "Producer", "PullConsumer", "PushConsumer"]


class Client(Twin[AsyncClient]):
    """Connections to a cluster, shared by the producers, consumers and admins made with it.

    Parameters
    ----------
    namesrv
        Addresses of the name servers, ``host:port`` separated by ``;``.
    settings
        Time limits and sizes.

    Examples
    --------
    >>> from headrace.client import Admin, Client
    >>> def topics() -> list[str]:
    ...     with Client("127.0.0.1:9876") as client:
    ...         return Admin(client).topics()
    """

    def __init__(self, namesrv: str, settings: ClientSettings | None = None) -> None:
        super().__init__(AsyncClient(namesrv, settings))

    @property
    def settings(self) -> ClientSettings:
        """Time limits and sizes."""
        return self.asynchronous.settings

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    close = blocking(AsyncClient.close)
    invoke = blocking(AsyncClient.invoke)
    ask_broker = blocking(AsyncClient.ask_broker)
    route = blocking(AsyncClient.route)
    queues = blocking(AsyncClient.queues)
    cluster_info = blocking(AsyncClient.cluster_info)
    brokers = blocking(AsyncClient.brokers)
    broker_address = blocking(AsyncClient.broker_address)
    expect = same(AsyncClient.expect)
    forget_route = same(AsyncClient.forget_route)
    statistics = same(AsyncClient.statistics)


class Producer(Twin[AsyncProducer]):
    """Send messages: see ``AsyncProducer``."""

    def __init__(self, client: Client, group: str | None = None) -> None:
        super().__init__(AsyncProducer(client.asynchronous, group))

    send = blocking(AsyncProducer.send)
    send_oneway = blocking(AsyncProducer.send_oneway)
    send_batch = blocking(AsyncProducer.send_batch)
    send_columns = blocking(AsyncProducer.send_columns)
    queue_for = blocking(AsyncProducer.queue_for)
    statistics = same(AsyncProducer.statistics)


class TableReader(Twin[AsyncTableReader]):
    """The table that a compaction topic holds: see ``AsyncTableReader``.

    ``get`` and ``items`` answer from memory, on the calling thread.
    """

    def __init__(
        self, client: Client, topic: str, *, wait: timedelta = timedelta(seconds=15)
    ) -> None:
        super().__init__(AsyncTableReader(client.asynchronous, topic, wait=wait))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __contains__(self, key: object) -> bool:
        return key in self.asynchronous

    def __len__(self) -> int:
        return len(self.asynchronous)

    __exit__ = blocking(AsyncTableReader.__aexit__)
    start = blocking(AsyncTableReader.start)
    close = blocking(AsyncTableReader.close)
    caught_up = blocking(AsyncTableReader.caught_up)
    wait_until = blocking(AsyncTableReader.wait_until)
    get = same(AsyncTableReader.get)
    items = same(AsyncTableReader.items)
    statistics = same(AsyncTableReader.statistics)


class TableWriter(Twin[AsyncTableWriter]):
    """Writes a table: see ``AsyncTableWriter``."""

    def __init__(self, client: Client, topic: str) -> None:
        super().__init__(AsyncTableWriter(client.asynchronous, topic))

    put = blocking(AsyncTableWriter.put)
    delete = blocking(AsyncTableWriter.delete)


class TransactionProducer(Twin[AsyncTransactionProducer]):
    """Send messages that belong to a transaction: see ``AsyncTransactionProducer``."""

    def __init__(self, client: Client, group: str, check: Check) -> None:
        super().__init__(AsyncTransactionProducer(client.asynchronous, group, check))

    def __enter__(self) -> Self:
        self.start()
        return self

    @contextlib.contextmanager
    def transaction(
        self, message: Message, queue: MessageQueue | None = None
    ) -> Iterator[Transaction]:
        """Send a half message, and end its transaction with the block."""
        half = self.begin(message, queue)
        try:
            yield half
        except BaseException:
            if half.state is LocalTransactionState.COMMIT_MESSAGE:
                half.leave_open()
            raise
        finally:
            self.end(half)

    __exit__ = blocking(AsyncTransactionProducer.__aexit__)
    start = blocking(AsyncTransactionProducer.start)
    close = blocking(AsyncTransactionProducer.close)
    begin = blocking(AsyncTransactionProducer.begin)
    end = blocking(AsyncTransactionProducer.end)
    send_in_transaction = blocking(AsyncTransactionProducer.send_in_transaction)
    send = blocking(AsyncProducer.send)
    send_oneway = blocking(AsyncProducer.send_oneway)
    queue_for = blocking(AsyncProducer.queue_for)
    transaction_statistics = same(AsyncTransactionProducer.transaction_statistics)


class PullConsumer(Twin[AsyncPullConsumer]):
    """Read queues by offset: see ``AsyncPullConsumer``."""

    def __init__(
        self, client: Client, group: str | None = None, *, committed: bool = False
    ) -> None:
        super().__init__(AsyncPullConsumer(client.asynchronous, group, committed=committed))

    pull = blocking(AsyncPullConsumer.pull)
    blocks = blocking_iterator(AsyncPullConsumer.blocks)
    begin_offset = blocking(AsyncPullConsumer.begin_offset)
    begin_offsets = blocking(AsyncPullConsumer.begin_offsets)
    end_offset = blocking(AsyncPullConsumer.end_offset)
    end_offsets = blocking(AsyncPullConsumer.end_offsets)
    offset_for_time = blocking(AsyncPullConsumer.offset_for_time)
    offsets_for_time = blocking(AsyncPullConsumer.offsets_for_time)
    committed = blocking(AsyncPullConsumer.committed)
    commit = blocking(AsyncPullConsumer.commit)
    statistics = same(AsyncPullConsumer.statistics)


class Jobs(Twin[AsyncJobs]):
    """The commit protocol of an embedded broker: see ``AsyncJobs``."""

    def __init__(self, client: Client, commit_topic: str) -> None:
        super().__init__(AsyncJobs(client.asynchronous, commit_topic))

    open = blocking(AsyncJobs.open)
    plan = blocking(AsyncJobs.plan)
    stage = blocking(AsyncJobs.stage)
    commit = blocking(AsyncJobs.commit)
    statistics = same(AsyncJobs.statistics)


class GroupConsumer(Twin[AsyncGroupConsumer]):
    """One member of a consumer group: see ``AsyncGroupConsumer``.

    It reads in the background, so it does not survive a fork.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        topics: Sequence[str],
        options: GroupOptions | None = None,
    ) -> None:
        super().__init__(AsyncGroupConsumer(client.asynchronous, group, topics, options))

    def __enter__(self) -> Self:
        self.start()
        return self

    __exit__ = blocking(AsyncGroupConsumer.__aexit__)
    start = blocking(AsyncGroupConsumer.start)
    close = blocking(AsyncGroupConsumer.close)
    poll = blocking(AsyncGroupConsumer.poll)
    commit = blocking(AsyncGroupConsumer.commit)
    assignment = same(AsyncGroupConsumer.assignment)
    statistics = same(AsyncGroupConsumer.statistics)


class PushConsumer(Twin[AsyncPushConsumer]):
    """One member of a consumer group that calls a listener: see ``AsyncPushConsumer``.

    A plain listener runs on threads of its own and may use this blocking client.

    Examples
    --------
    >>> def serve(client: Client) -> None:
    ...     PushConsumer(client, "printers", ["lines"], lambda m: print(m.body)).run()
    """

    def __init__(
        self,
        client: Client,
        group: str,
        subscriptions: Sequence[str] | Mapping[str, str],
        listener: Listener | None = None,
        options: PushOptions | None = None,
    ) -> None:
        super().__init__(
            AsyncPushConsumer(client.asynchronous, group, subscriptions, listener, options)
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    __exit__ = blocking(AsyncPushConsumer.__aexit__)
    __iter__ = blocking_iterator(AsyncPushConsumer.messages)
    messages = blocking_iterator(AsyncPushConsumer.messages)
    start = blocking(AsyncPushConsumer.start)
    run = blocking(AsyncPushConsumer.run)
    close = blocking(AsyncPushConsumer.close)
    assignment = same(AsyncPushConsumer.assignment)
    statistics = same(AsyncPushConsumer.statistics)

    def close_soon(self) -> None:
        """Begin to close, for a listener that must not wait for its own end."""
        loop_thread().loop.call_soon_threadsafe(self.asynchronous.close_soon)


class Admin(Twin[AsyncAdmin]):
    """Look after a cluster: see ``AsyncAdmin``."""

    def __init__(self, client: Client) -> None:
        super().__init__(AsyncAdmin(client.asynchronous))

    create_topic = blocking(AsyncAdmin.create_topic)
    delete_topic = blocking(AsyncAdmin.delete_topic)
    topics = blocking(AsyncAdmin.topics)
    topic_exists = blocking(AsyncAdmin.topic_exists)
    topic_config = blocking(AsyncAdmin.topic_config)
    topic_stats = blocking(AsyncAdmin.topic_stats)
    topic_groups = blocking(AsyncAdmin.topic_groups)
    group_progress = blocking(AsyncAdmin.group_progress)
    group_members = blocking(AsyncAdmin.group_members)
    set_group_offsets = blocking(AsyncAdmin.set_group_offsets)
    groups = blocking(AsyncAdmin.groups)
    group_config = blocking(AsyncAdmin.group_config)
    set_group_config = blocking(AsyncAdmin.set_group_config)
    lag = blocking(AsyncAdmin.lag)
    reset_group = blocking(AsyncAdmin.reset_group)
    delete_group = blocking(AsyncAdmin.delete_group)
    cluster_info = blocking(AsyncAdmin.cluster_info)
    broker_status = blocking(AsyncAdmin.broker_status)
    broker_config = blocking(AsyncAdmin.broker_config)
    is_headrace = blocking(AsyncAdmin.is_headrace)
    message = blocking(AsyncAdmin.message)
    message_by_id = blocking(AsyncAdmin.message_by_id)
    messages_by_key = blocking(AsyncAdmin.messages_by_key)
    jobs = blocking(AsyncAdmin.jobs)
