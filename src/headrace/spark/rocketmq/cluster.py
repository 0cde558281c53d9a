"""Connections of this process to clusters, and the queues that a subscription means."""

from __future__ import annotations

import time

from headrace.client import Admin, Client, MessageQueue
from headrace.errors import TopicNotFoundError
from headrace.spark.rocketmq.options import Assignment, ClusterOptions, ReadOptions, Topics
from headrace.spark.rocketmq.resolving import match_queues

__all__ = ["QueueFinder", "connect"]

_clients: dict[ClusterOptions, Client] = {}
#: Topics of RocketMQ itself: no pattern means them.
_SYSTEM_PREFIXES = ("%RETRY%", "%DLQ%", "rmq_sys_", "RMQ_SYS_", "CID_RMQ_SYS_", "%SYS%")
_SYSTEM_TOPICS = frozenset(
    {"TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "OFFSET_MOVED_EVENT", "SELF_TEST_TOPIC"}
    | {"TRANS_CHECK_MAX_TIME_TOPIC"}
)


def connect(cluster: ClusterOptions) -> Client:
    """Give this process's client of a cluster; it stays connected between tasks."""
    client = _clients.get(cluster)
    if client is None:
        client = _clients[cluster] = Client(cluster.namesrv, cluster.client)
    return client


class QueueFinder:
    """Finds the queues that a subscription means now.

    A topic that was there and is not found any more is missed for a while, as it is when its
    broker restarts, before that counts as loss.

    Parameters
    ----------
    options
        What is subscribed.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._client = connect(options.cluster)
        self._subscription = options.subscription
        self._fail = options.fail_on_data_loss
        self._refresh = options.cluster.client.route_refresh.total_seconds()
        self._patience = options.cluster.client.retry_timeout.total_seconds()
        self._matching: list[str] = []
        self._matched_at: float | None = None
        self._missing_since: dict[str, float] = {}

    def all_queues(self) -> list[MessageQueue]:
        """List the queues to read at the start of a query.

        Raises
        ------
        TopicNotFoundError
            A topic that is subscribed by name does not exist.
        SettingsError
            An assigned queue does not exist.
        """
        found = [queue for topic in self._topics() for queue in self._client.queues(topic)]
        return self._assigned(found)

    def present_queues(self) -> list[MessageQueue]:
        """List the queues to read of the topics that can be found now.

        Raises
        ------
        TopicNotFoundError
            A topic was not found for longer than ``retry_timeout``, and loss is an error.
        """
        found = [queue for topic in self._topics() for queue in self._queues_if_found(topic)]
        if isinstance(self._subscription, Assignment) and self._missing_since:
            known = {
                topic: table
                for topic, table in self._subscription.queues.items()
                if topic not in self._missing_since
            }
            return sorted(match_queues("assign", known, found))
        return self._assigned(found)

    def _assigned(self, found: list[MessageQueue]) -> list[MessageQueue]:
        if isinstance(self._subscription, Assignment):
            return sorted(match_queues("assign", self._subscription.queues, found))
        return sorted(found)

    def _topics(self) -> list[str]:
        match self._subscription:
            case Topics(names):
                return list(names)
            case Assignment(queues):
                return list(queues)
        now = time.monotonic()
        if self._matched_at is None or now - self._matched_at >= self._refresh:
            pattern = self._subscription.pattern
            self._matching = [name for name in self._user_topics() if pattern.fullmatch(name)]
            self._matched_at = now
        return self._matching

    def _user_topics(self) -> list[str]:
        # RocketMQ has a topic named after each cluster and each broker.
        info = self._client.cluster_info()
        own = _SYSTEM_TOPICS | set(info.cluster_addr_table) | set(info.broker_addr_table)
        return [
            name
            for name in Admin(self._client).topics()
            if name not in own and not name.startswith(_SYSTEM_PREFIXES)
        ]

    def _queues_if_found(self, topic: str) -> list[MessageQueue]:
        try:
            found = self._client.queues(topic)
        except TopicNotFoundError as error:
            since = self._missing_since.setdefault(topic, time.monotonic())
            if self._fail and time.monotonic() - since >= self._patience:
                raise TopicNotFoundError(
                    f"topic '{topic}' of a running query has not been found for"
                    f" {self._patience:g} s: {error.message}",
                    hint="look whether it was deleted or its broker is down; with failOnDataLoss"
                    " set to false the query goes on without it",
                ) from None
            return []
        self._missing_since.pop(topic, None)
        return found
