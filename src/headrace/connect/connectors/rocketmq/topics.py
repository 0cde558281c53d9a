"""Topics of two clusters: which are replicated, and what they are called on the other side."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from headrace.connect import Config, ConfigProblem
from headrace.connect.connectors.foreign_topics import chosen_topics

if TYPE_CHECKING:
    from headrace.client import Admin

__all__ = ["Renaming", "is_internal", "replicated_topics"]

_OF_BROKERS = frozenset(
    {
        "BenchmarkTest",
        "DefaultHeartBeatSyncerTopic",
        "OFFSET_MOVED_EVENT",
        "SCHEDULE_TOPIC_XXXX",
        "SELF_TEST_TOPIC",
        "TBW102",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
#: Of groups, of brokers, and what jobs of Headrace keep for themselves.
_INTERNAL = re.compile(
    r"(?i:rmq_sys_).*|%.*|.*_REPLY_TOPIC|.*-(state|commit|journal|batch|done)Topic"
)


def is_internal(name: str) -> bool:
    """Tell topics that brokers, groups and jobs keep for themselves.

    >>> is_internal("%RETRY%readers"), is_internal("words-commitTopic"), is_internal("orders")
    (True, True, False)
    """
    return name in _OF_BROKERS or _INTERNAL.fullmatch(name) is not None


def replicated_topics(wanted: list[str], admin: Admin) -> list[str]:
    """Give the topics of the other cluster that names and patterns mean."""
    info = admin.cluster_info()
    # Stock brokers have topics that are called like themselves and like their cluster.
    names = {*info.broker_addr_table, *info.cluster_addr_table}
    return chosen_topics(
        wanted,
        admin.topics(),
        key="rocketmq.topics",
        system="The other cluster",
        hidden=lambda name: name in names or is_internal(name),
    )


@dataclass(frozen=True, slots=True)
class Renaming:
    r"""What a topic is called at its goal.

    Examples
    --------
    >>> Renaming("eu.${topic}")("orders")
    'eu.orders'
    >>> renaming = Renaming("${topic}", re.compile("(.*)-eu"), r"\1-world")
    >>> renaming("orders-eu"), renaming("returns")
    ('orders-world', 'returns')
    """

    form: str
    pattern: re.Pattern[str] | None = None
    replacement: str = ""

    @classmethod
    def of(cls, config: Config) -> Self:
        """Read it from a config."""
        return cls(
            config["topic.format"],
            config["topic.rename.regex"],
            config["topic.rename.replacement"] or "",
        )

    def __call__(self, topic: str) -> str:
        """Give the name at the goal."""
        found = self.pattern.fullmatch(topic) if self.pattern is not None else None
        if found is not None:
            return found.expand(self.replacement)
        return self.form.replace("${topic}", topic)

    @classmethod
    def problems(cls, config: Config, topics: list[str]) -> Iterator[ConfigProblem]:
        """Name what is wrong with the keys."""
        pattern, replacement = config["topic.rename.regex"], config["topic.rename.replacement"]
        if bool(pattern) != bool(replacement):
            missing = "topic.rename.replacement" if pattern else "topic.rename.regex"
            yield ConfigProblem(missing, f"The key {missing} is missing: the two belong together.")
        elif pattern:
            yield from _template_problems(pattern, replacement)
        several = len(topics) > 1 or any(one.startswith("^") for one in topics)
        if several and "${topic}" not in config["topic.format"]:
            message = "topic.format without ${topic} sends all topics into one; name one topic."
            yield ConfigProblem("topic.format", message)


def _template_problems(pattern: re.Pattern[str], replacement: str) -> Iterator[ConfigProblem]:
    # The template alone can be checked against a pattern with the same groups that matches.
    names = {number: name for name, number in pattern.groupindex.items()}
    groups = [f"(?P<{names[n]}>)" if n in names else "()" for n in range(1, pattern.groups + 1)]
    try:
        re.sub("".join(groups), replacement, "")
    except (re.error, IndexError) as error:
        message = f"topic.rename.replacement does not fit its pattern: {error}."
        yield ConfigProblem("topic.rename.replacement", message)
