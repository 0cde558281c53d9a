"""Topics: which exist, with how many queues, and what they allow."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from headrace.errors import (
    InvalidParameterError,
    NoPermissionError,
    TopicNotFoundError,
)
from headrace.protocol.codes import Perm
from headrace.protocol.routes import TopicConfig, apply_attributes, keeps_newest
from headrace.protocol.transactions import COMMIT_TOPIC_SUFFIX

# How long messages are kept: retention, and the topics that keep the newest of each key.

logger = logging.getLogger(__name__)


def is_compacted(config: TopicConfig) -> bool:
    """Return whether a topic keeps the newest message of each key; commit topics always do."""
    return keeps_newest(config.attributes) or config.topic_name.endswith(COMMIT_TOPIC_SUFFIX)


DEFAULT_TOPIC = "TBW102"
"""The topic whose settings a producer's new topic takes over."""

RETRY_PREFIX = "%RETRY%"
"""In front of a group's name: the topic of messages that the group could not process."""

DEAD_PREFIX = "%DLQ%"
"""In front of a group's name: the topic of messages that the group could not process at all."""

DELAY_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""Messages that wait by level; queue ``level - 1`` holds those of one level."""

TIMER_TOPIC = "rmq_sys_wheel_timer"
"""Messages that wait for a time of their own."""

PROGRESS_TOPIC = "rmq_sys_headrace_delays"
"""What of the two topics above was delivered."""

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Messages that wait for their producer's word, in queue 0."""

MARK_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""What became of them, and how often their producers were asked, in queue 0."""

DISCARD_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Messages whose producers never answered."""

CLOSED_TOPICS = {
    DELAY_TOPIC: 18,
    TIMER_TOPIC: 1,
    PROGRESS_TOPIC: 1,
    HALF_TOPIC: 1,
    MARK_TOPIC: 1,
    DISCARD_TOPIC: 1,
}
"""Topics that only the broker itself writes to, with the number of their queues."""

_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
_MOST_QUEUES = 65_536


class TopicTable:
    """All topics of the broker.

    Parameters
    ----------
    cluster, broker
        Names of the cluster and of the broker; topics with these names exist from the start.
    default_queues
        Queues of a topic that the first message creates.
    saved
        Topics of an earlier run.

    Examples
    --------
    >>> topics = TopicTable("DefaultCluster", "broker-a", 8)
    >>> topics.create("lines", queues=4).write_queue_nums
    4
    >>> "lines" in topics, "words" in topics
    (True, False)
    """

    def __init__(
        self, cluster: str, broker: str, default_queues: int, saved: Iterable[TopicConfig] = ()
    ) -> None:
        everything = Perm.READ | Perm.WRITE | Perm.INHERIT
        self._system = {
            name: _config(name, default_queues, perm=everything)
            for name in (DEFAULT_TOPIC, cluster, broker)
        } | {name: _config(name, queues) for name, queues in CLOSED_TOPICS.items()}
        own = {config.topic_name: config for config in saved}
        self._topics = own | self._system
        #: Number of changes so far: the data version that clients see.
        self.version = 0
        self._changed: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._topics))

    @property
    def system(self) -> list[str]:
        """Topics that exist from the start and cannot be deleted."""
        return list(self._system)

    def version_of(self, name: str) -> int:
        """Return the version in which a topic changed last; 0: not since the start."""
        return self._changed.get(name, 0)

    def configs(self) -> list[TopicConfig]:
        """Return all topics, for a snapshot."""
        return list(self._topics.values())

    def find(self, name: str) -> TopicConfig | None:
        """Return a topic, None when there is none of that name."""
        return self._topics.get(name)

    def get(self, name: str) -> TopicConfig:
        """Return a topic.

        Raises
        ------
        TopicNotFoundError
            When there is none of that name.
        """
        config = self._topics.get(name)
        if config is None:
            message = f"topic {name!r} does not exist"
            raise TopicNotFoundError(message, hint="Create it: headrace topic create NAME.")
        return config

    def create(
        self, name: str, *, queues: int, attributes: Mapping[str, str] | None = None
    ) -> TopicConfig:
        """Create a topic that may be read and written, or return the one there is.

        Raises
        ------
        InvalidParameterError
            When the name or the number of queues cannot be.
        """
        found = self._topics.get(name)
        return found or self._put(_config(name, queues, attributes=attributes))

    def update(self, config: TopicConfig, attributes: str = "") -> TopicConfig:
        """Create a topic or change it.

        Parameters
        ----------
        config
            Its settings, but for the attributes.
        attributes
            What to change in the attributes: ``+key=value`` and ``-key``, comma-separated.

        Raises
        ------
        InvalidParameterError
            When a setting cannot be.
        """
        if config.topic_name in self._system:
            message = f"topic {config.topic_name!r} is the broker's own and cannot be changed"
            raise InvalidParameterError(message)
        before = self._topics.get(config.topic_name)
        old = before.attributes if before else None
        changed = apply_attributes(old, attributes)
        return self._put(msgspec.structs.replace(config, attributes=changed))

    def _put(self, config: TopicConfig) -> TopicConfig:
        _check(config)
        self._topics[config.topic_name] = config
        self.version += 1
        self._changed[config.topic_name] = self.version
        return config

    def replace(self, configs: Iterable[TopicConfig]) -> None:
        """Replace all topics but the broker's own ones with these."""
        self._topics = self._system | {config.topic_name: config for config in configs}
        self.version += 1

    def delete(self, name: str) -> bool:
        """Delete a topic; return False when there is none of that name.

        Raises
        ------
        InvalidParameterError
            When it is one of the broker's own.
        """
        if name in self._system:
            raise InvalidParameterError(f"topic {name!r} is the broker's own, it cannot be deleted")
        self.version += name in self._topics
        self._changed.pop(name, None)
        return self._topics.pop(name, None) is not None

    def for_sending(self, name: str, template: str, queues: int) -> TopicConfig:
        """Return the topic to send to, created where that is allowed.

        Parameters
        ----------
        name
            The topic.
        template
            Topic whose settings a new topic takes over; empty: create none.
        queues
            Most queues of a new topic.

        Raises
        ------
        TopicNotFoundError
            When there is no such topic, and none can be created.
        NoPermissionError
            When it takes no messages.
        """
        config = self._topics.get(name)
        if name in CLOSED_TOPICS:
            raise NoPermissionError(f"topic {name!r} takes no messages: it is the broker's own")
        if config is not None:
            if not config.perm & Perm.WRITE:
                raise NoPermissionError(f"topic {name!r} takes no messages: it is read-only")
            return config
        base = self._topics.get(template)
        if base is None or not base.perm & Perm.INHERIT:
            return self.get(name)
        count = max(1, min(queues, base.write_queue_nums))
        perm = base.perm & ~Perm.INHERIT
        return self._put(_config(name, count, perm=perm))


def _config(
    name: str,
    queues: int,
    *,
    perm: int = Perm.READ | Perm.WRITE,
    attributes: Mapping[str, str] | None = None,
) -> TopicConfig:
    return TopicConfig(
        topic_name=name,
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=int(perm),
        attributes=dict(attributes or {}),
    )


def check_topic_name(name: str) -> None:
    """Refuse a name that no topic can have.

    Raises
    ------
    InvalidParameterError
        It has characters that a name of a topic cannot have, or too many.
    """
    if not _NAME.fullmatch(name):
        message = f"{name[:300]!r} cannot be the name of a topic"
        hint = "Use 1 to 127 of these: letters, digits, and the signs _ - % |"
        raise InvalidParameterError(message, hint=hint)


def _check(config: TopicConfig) -> None:
    name = config.topic_name
    check_topic_name(name)
    for count in (config.read_queue_nums, config.write_queue_nums):
        if not 1 <= count <= _MOST_QUEUES:
            message = f"topic {name!r} cannot have {count} queues"
            raise InvalidParameterError(message, hint=f"Use 1 to {_MOST_QUEUES:,}.")
    if not 0 <= config.perm <= Perm.READ | Perm.WRITE | Perm.INHERIT:
        raise InvalidParameterError(f"topic {name!r} cannot have the permission {config.perm}")
