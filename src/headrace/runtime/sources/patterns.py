"""Topics that the patterns of a job's sources match, looked for again while the job runs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.topology import Topology


#: So often the name server is asked for new topics, seconds.
_LOOK_SECONDS = 1.0
#: Topics that no pattern means: those that jobs and brokers make for themselves.
_INTERNAL = re.compile(
    r".*-(stateTopic|commitTopic|shuffleTopic|journalTopic)"
    r"|%.*|rmq_sys_.*|RMQ_SYS_.*|SCHEDULE_TOPIC_XXXX|TBW102|BenchmarkTest|OFFSET_MOVED_EVENT"
    r"|SELF_TEST_TOPIC|TRANS_CHECK_MAX_TIME_TOPIC"
)


def is_internal(topic: str) -> bool:
    """Tell whether no pattern means a topic, as jobs or brokers made it for themselves.

    >>> is_internal("orders"), is_internal("job-commitTopic")
    (False, True)
    """
    return _INTERNAL.fullmatch(topic) is not None


def matching_topics(topology: Topology, known: Iterable[str]) -> list[str]:
    """Choose the topics that a pattern of some source matches and no source names.

    >>> from headrace import StreamBuilder, serdes
    >>> builder = StreamBuilder("job")
    >>> builder.source(re.compile("orders-.*"), serdes.string).sink("out", serdes.string)
    <end of 'sink-out'>
    >>> matching_topics(builder.build(), ["out", "orders-eu", "orders-us", "orders-x-stateTopic"])
    ['orders-eu', 'orders-us']
    """
    patterns = [source for source in topology.sources if not source.topics]
    named = {topic for source in topology.sources for topic in source.topics}
    return sorted(
        topic
        for topic in known
        if topic not in named
        and not is_internal(topic)
        and any(source.reads(topic) for source in patterns)
    )


class PatternTopics:
    """Finds the topics that match, and asks again from time to time.

    Parameters
    ----------
    topology
        Whose sources have patterns, or not.
    ask
        Lists all topics of the cluster.
    """

    def __init__(self, topology: Topology, ask: Callable[[], list[str]]) -> None:
        self._topology = topology
        self._ask = ask
        self._has_patterns = any(not source.topics for source in topology.sources)
        self._asked = float("-inf")
        self._found: list[str] = []

    def topics(self) -> list[str]:
        """Return the topics that match; a topic that is new may be missing for a second."""
        if self._has_patterns and time.monotonic() - self._asked >= _LOOK_SECONDS:
            self._found = matching_topics(self._topology, self._ask())
            self._asked = time.monotonic()
        return self._found
