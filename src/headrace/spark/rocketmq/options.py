"""The options of the data source ``rocketmq``: their names, their meaning, and their parsing."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Literal, TypeAlias, TypeVar

from headrace._setting import DeclaredSettings, setting, settings_of
from headrace.client import Admin, Client, ClientSettings, MessageQueue
from headrace.errors import SettingsError, TopicNotFoundError
from headrace.protocol.routes import is_of_brokers
from headrace.settings import ConnectionSettings
from headrace.spark.rocketmq.positions import (
    AtEdge,
    Position,
    QueueTable,
    Strategy,
    match_queues,
    read_offsets,
    read_queue_lists,
    read_queue_numbers,
)
from headrace.spelling import did_you_mean

Reading: TypeAlias = Literal["batch", "stream"]
_Settings = TypeVar("_Settings", bound="_Options")


class _Options(DeclaredSettings):
    """Settings that are options of Spark, and are named in Spark's spelling."""

    __slots__ = ()
    VARIABLES = ""
    TOLD_AS = "option '{}'"
    #: The prefix of their names.
    BEGINNING: ClassVar[str] = ""

    @classmethod
    def name_of(cls, field: str) -> str:
        """Return the name of an option."""
        first, *others = field.split("_")
        return cls.BEGINNING + first + "".join(map(str.capitalize, others))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClusterOptions(_Options, ConnectionSettings):
    """The options that name a cluster and say how it is reached."""

    BEGINNING = "rocketmq."

    namesrv: str = setting(
        "", doc="Addresses of the name servers, host:port, separated by ';'.", shown="required"
    )
    route_refresh: timedelta = setting(
        timedelta(seconds=5), doc="How often a query looks for new queues and topics."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadOptions(_Options):
    """The options of a read; those of subscriptions and positions are parsed later."""

    subscribe: str | None = setting(None, doc="Topics to read, separated by commas.")
    subscribe_pattern: str | None = setting(
        None, doc="A regular expression that must match the whole name of a topic."
    )
    assign: str | None = setting(None, doc='Queues to read, as JSON: {"topic": [0, 1]}.')
    starting_offsets: str | None = setting(
        None, doc="Where to begin: earliest, latest, or JSON by topic and queue."
    )
    starting_timestamp: str | None = setting(
        None, doc="Begin at the first message stored at this time (ms) or later."
    )
    starting_offsets_by_timestamp: str | None = setting(
        None, doc="The same by topic and queue, as JSON."
    )
    starting_offsets_by_timestamp_strategy: Strategy = setting(
        "error", doc="What to do where no message is that late: an error, or begin at the end."
    )
    ending_offsets: str | None = setting(
        None, doc="Where a batch read ends: latest, or JSON by topic and queue."
    )
    ending_timestamp: str | None = setting(
        None, doc="End a batch read before the first message stored at this time (ms)."
    )
    ending_offsets_by_timestamp: str | None = setting(
        None, doc="The same by topic and queue, as JSON."
    )
    max_offsets_per_trigger: int | None = setting(
        None,
        doc="Largest number of messages that one batch of a query reads.",
        minimum=1,
        shown="all there are",
    )
    min_partitions: int | None = setting(
        None,
        doc="Cut large ranges so that there are about this many tasks.",
        minimum=1,
        shown="one task for each queue",
    )
    fail_on_data_loss: bool = setting(
        default=True, doc="Whether messages that are gone end the query or are passed over."
    )
    group_id: str | None = setting(
        None,
        doc="Consumer group whose offsets follow the query, so that tools can show its lag.",
        pattern=r"[%|a-zA-Z0-9_-]{1,120}",
        unit="letters, digits, '-' and '_'",
    )
    committed: bool = setting(
        default=False, doc="Whether to read only committed messages of jobs, and each once."
    )
    include_headers: bool = setting(default=False, doc="Whether there is a column 'headers'.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _WriteOptions(_Options):
    """The options of a write."""

    topic: str | None = setting(None, doc="Topic of all rows; wins over the column 'topic'.")


READ_OPTIONS, WRITE_OPTIONS = (
    {
        kind.name_of(field.name): str(field.metadata["doc"])
        for kind in (_ClusterOptions, own)
        for field in settings_of(kind)
    }
    for own in (_ReadOptions, _WriteOptions)
)
"""The meaning of each option of a read, and of a write."""

#: Spark also passes its own options of a query to the source.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
_STREAM_ONLY = ("maxOffsetsPerTrigger", "groupId")
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
#: Options of Spark's Kafka source and likely guesses, with their names here.
_FROM_KAFKA = {
    "kafka.bootstrap.servers": "rocketmq.namesrv",
    "kafka.group.id": "groupId",
    "groupidprefix": "groupId",
    "namesrv": "rocketmq.namesrv",
    "path": "subscribe (to read) or topic (to write)",
}


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The address of a cluster and the settings of the client."""

    namesrv: str
    client: ClientSettings


@dataclass(frozen=True, slots=True)
class Topics:
    """Read all queues of these topics."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Read all queues of the topics whose whole names match."""

    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class AssignedQueues:
    """Read these queues."""

    queues: QueueTable


Subscription: TypeAlias = Topics | Pattern | AssignedQueues


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read, and how."""

    cluster: ClusterOptions
    subscription: Subscription
    starting: Position
    ending: Position
    #: What to do if no message is as late as a starting timestamp.
    strategy: Strategy
    #: The largest number of messages of one batch; None: all there are.
    max_offsets: int | None
    #: About how many tasks there should be; None: one for each queue.
    min_partitions: int | None
    fail_on_data_loss: bool
    #: The consumer group whose offsets follow the query, if any.
    group: str | None
    #: Whether to read only committed messages of jobs.
    committed: bool


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where to write."""

    cluster: ClusterOptions
    #: Topic of all rows; None: that of the column ``topic``.
    topic: str | None


def check_names(options: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Check that all options exist.

    Raises
    ------
    SettingsError
        An option does not exist; the hint guesses which one was meant.
    """
    names = {name.lower(): name for name in known}
    for given in options:
        low = given.lower()
        if low in names or low in _SPARKS_OWN:
            continue
        raise SettingsError(f"the rocketmq source has no option '{given}'", hint=_guess(low, names))


def _guess(given: str, names: Mapping[str, str]) -> str:
    other = {name.lower(): name for name in (*READ_OPTIONS, *WRITE_OPTIONS)}
    if given in _FROM_KAFKA:
        return f"here it is {_FROM_KAFKA[given]}"
    if given in other:
        use = "reading" if given in map(str.lower, READ_OPTIONS) else "writing"
        return f"'{other[given]}' is an option for {use}"
    return did_you_mean(given, names.values(), f"there are {', '.join(names.values())}")


def read_options(options: Mapping[str, str], reading: Reading) -> ReadOptions:
    """Parse the options of a read.

    Raises
    ------
    SettingsError
        An option does not exist, is missing, has a value that cannot work, or contradicts another
        one.
    """
    check_names(options, READ_OPTIONS)
    for name in _BATCH_ONLY if reading == "stream" else _STREAM_ONLY:
        if name in options:
            raise SettingsError(
                f"option '{name}' has no meaning for a {reading} read",
                hint="a stream has no end" if reading == "stream" else "leave it out",
            )
    own = _given(_ReadOptions, options)
    default = AtEdge("earliest" if reading == "batch" else "latest")
    return ReadOptions(
        cluster=_cluster(options),
        subscription=_subscription(options),
        starting=_checked_start(_position(options, "starting") or default, reading),
        ending=_checked_end(_position(options, "ending") or AtEdge("latest")),
        strategy=own.starting_offsets_by_timestamp_strategy,
        max_offsets=own.max_offsets_per_trigger,
        min_partitions=own.min_partitions,
        fail_on_data_loss=own.fail_on_data_loss,
        group=own.group_id,
        committed=own.committed,
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write.

    Raises
    ------
    SettingsError
        An option does not exist, is missing, or has a value that cannot work.
    """
    check_names(options, WRITE_OPTIONS)
    topic = _given(_WriteOptions, options).topic
    if topic == "":
        raise _wrong("topic", topic, "name a topic, or leave the option out")
    return WriteOptions(_cluster(options), topic)


def include_headers(options: Mapping[str, str]) -> bool:
    """Return whether a read has a column of headers."""
    return _given(_ReadOptions, options).include_headers


def _given(kind: type[_Settings], options: Mapping[str, str]) -> _Settings:
    names = {field.name: kind.name_of(field.name) for field in settings_of(kind)}
    return kind(**{field: options[name] for field, name in names.items() if name in options})


def _cluster(options: Mapping[str, str]) -> ClusterOptions:
    given = _given(_ClusterOptions, options)
    if not given.namesrv:
        raise SettingsError(
            "the rocketmq source needs the option 'rocketmq.namesrv'",
            hint='give the name server: .option("rocketmq.namesrv", "127.0.0.1:9876")',
        )
    settings = ClientSettings(**given.connection, route_refresh=given.route_refresh)
    # Executors may run on other machines, which do not have the file of certificates.
    return ClusterOptions(given.namesrv, settings.portable())


def _subscription(options: Mapping[str, str]) -> Subscription:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name in options]
    if len(given) != 1:
        raise SettingsError(
            "a read needs one of the options subscribe, subscribePattern and assign,"
            f" and has {' and '.join(given) or 'none'}",
            hint='for example .option("subscribe", "lines")',
        )
    (name,) = given
    text = options[name]
    if name == "assign":
        return AssignedQueues(read_queue_lists(name, text))
    if name == "subscribePattern":
        try:
            return Pattern(re.compile(text))
        except re.error as error:
            raise _wrong(name, text, f"write a regular expression ({error})") from None
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise _wrong(name, text, "name topics, separated by commas")
    return Topics(topics)


def _position(options: Mapping[str, str], side: Literal["starting", "ending"]) -> Position | None:
    """Parse a position; as in Spark's Kafka source, a timestamp wins over offsets."""
    name = f"{side}Timestamp"
    if name in options:
        return read_queue_numbers(name, options[name])
    name = f"{side}OffsetsByTimestamp"
    if name in options:
        return read_queue_numbers(name, options[name])
    name = f"{side}Offsets"
    return read_offsets(name, options[name]) if name in options else None


def _checked_start(position: Position, reading: Reading) -> Position:
    if reading == "batch" and position == AtEdge("latest"):
        raise SettingsError(
            "option 'startingOffsets' is 'latest': a batch read would find nothing",
            hint="begin a batch read at 'earliest', at offsets, or at a timestamp",
        )
    return position


def _checked_end(position: Position) -> Position:
    if position == AtEdge("earliest"):
        raise SettingsError(
            "option 'endingOffsets' is 'earliest': nothing comes before it",
            hint="end at 'latest', at offsets, or at a timestamp",
        )
    return position


def _wrong(name: str, value: str, hint: str) -> SettingsError:
    return SettingsError(f"option '{name}' is {value!r}, which cannot work", hint=hint)


# Connections of this process to clusters, and the queues of a subscription.

_clients: dict[ClusterOptions, Client] = {}


def connect(cluster: ClusterOptions) -> Client:
    """Return this process's client of a cluster; it stays connected between tasks."""
    client = _clients.get(cluster)
    if client is None:
        client = _clients[cluster] = Client(cluster.namesrv, cluster.client)
    return client


class QueueFinder:
    """Finds the queues of a subscription.

    When a topic is no longer found, its broker may only be restarting, so the finder waits for a
    while before it counts the topic as lost.

    Parameters
    ----------
    options
        The options of the read, with its subscription.
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
        """List the queues to read, of those topics that can be found now.

        Raises
        ------
        TopicNotFoundError
            A topic was not found for longer than ``retry_timeout``, and data loss is an error.
        """
        found = [queue for topic in self._topics() for queue in self._queues_if_found(topic)]
        if isinstance(self._subscription, AssignedQueues) and self._missing_since:
            known = {
                topic: table
                for topic, table in self._subscription.queues.items()
                if topic not in self._missing_since
            }
            return sorted(match_queues("assign", known, found))
        return self._assigned(found)

    def _assigned(self, found: list[MessageQueue]) -> list[MessageQueue]:
        if isinstance(self._subscription, AssignedQueues):
            return sorted(match_queues("assign", self._subscription.queues, found))
        return sorted(found)

    def _topics(self) -> list[str]:
        match self._subscription:
            case Topics(names):
                return list(names)
            case AssignedQueues(queues):
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
        own = set(info.cluster_addr_table) | set(info.broker_addr_table)
        return [
            name
            for name in Admin(self._client).topics()
            if name not in own and not is_of_brokers(name)
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
                    hint="check whether it was deleted or its broker is down; with failOnDataLoss"
                    " set to false the query goes on without it",
                ) from None
            return []
        self._missing_since.pop(topic, None)
        return found
