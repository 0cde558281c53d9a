"""The keys that every connector has, declared once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Literal

from headrace.connect.config.checks import at_least, matching, one_of
from headrace.connect.config.declaration import ConfigDeclaration, declare
from headrace.connect.config.keys import ConfigProblem, key
from headrace.connect.config.kinds import PluginName
from headrace.errors import ConnectorConfigError

__all__ = [
    "COMMON",
    "REFUSED",
    "SINK",
    "SOURCE",
    "Role",
    "common_keys",
    "common_problems",
    "normal",
]

Role = Literal["source", "sink"]
"""Whether a connector brings records into topics or takes them out."""

_NEVER = timedelta(milliseconds=-1)

COMMON = declare(
    key(
        "name",
        str,
        "The connector's name, unique among all connectors.",
        required=True,
        # What lifecycle names allow is decided where they are made; here only what no form takes.
        valid=matching(r"(?s).*\S.*", "a name that is not blank"),
        group="Common",
    ),
    key(
        "connector.class",
        PluginName("connectors"),
        "The connector's class, or one of its other names, such as `file-source`.",
        required=True,
        group="Common",
        width="long",
    ),
    key(
        "tasks.max",
        int,
        "Most tasks that the connector may share its work out to.",
        default=1,
        valid=at_least(1),
        importance="high",
        group="Common",
        width="short",
        aliases=("max.tasks",),
    ),
    key(
        "key.converter",
        PluginName("converters"),
        "How keys become bytes and bytes become keys; its own keys follow after `key.converter.`.",
        group="Common",
        importance="low",
    ),
    key(
        "value.converter",
        PluginName("converters"),
        "How values become bytes and bytes become values; its own keys follow after "
        "`value.converter.`.",
        group="Common",
        importance="low",
    ),
    key(
        "header.converter",
        PluginName("header_converters"),
        "How headers become properties of a message; its own keys follow after "
        "`header.converter.`.",
        group="Common",
        importance="low",
    ),
    key(
        "transforms",
        list,
        "Names of the transforms that every record passes, in this order.",
        default=[],
        group="Transforms",
        importance="low",
    ),
    key(
        "predicates",
        list,
        "Names of the predicates that decide which records a transform sees.",
        default=[],
        group="Predicates",
        importance="low",
    ),
    key(
        "config.action.reload",
        str,
        "What becomes of the connector when a value from outside changes: `restart` reads such "
        "values again whenever the connector or a task starts, which is all that `none` does too.",
        default="restart",
        valid=one_of("none", "restart", ignore_case=True),
        group="Common",
        importance="low",
    ),
    key(
        "errors.retry.timeout",
        timedelta,
        "How long a failed step is tried again; 0 never, -1 for ever.",
        default=timedelta(0),
        valid=at_least(_NEVER),
        group="Errors",
    ),
    key(
        "errors.retry.delay.max.ms",
        timedelta,
        "Longest pause between two tries; pauses grow from 300 ms to it.",
        default=timedelta(minutes=1),
        valid=at_least(_NEVER),
        group="Errors",
    ),
    key(
        "errors.tolerance",
        str,
        "What a record that fails does: `none` stops the task, `all` lets it go on without.",
        default="none",
        valid=one_of("none", "all", ignore_case=True),
        group="Errors",
    ),
    key(
        "errors.log.enable",
        bool,
        "Whether each record that fails is logged, also when it is tolerated.",
        default=False,
        group="Errors",
    ),
    key(
        "errors.log.include.messages",
        bool,
        "Whether that log line holds the record itself.",
        default=False,
        group="Errors",
    ),
    key(
        "task.shutdown.graceful.timeout.ms",
        timedelta,
        "How long a task or connector may take to stop by itself before it is forced; the "
        "worker's own setting where none is given.",
        group="Limits",
        importance="low",
    ),
    key(
        "memory.max.mb",
        int,
        "Most memory of one task in MiB; a task that wants more is killed, alone. The worker's "
        "own setting where none is given.",
        valid=at_least(64),
        group="Limits",
        importance="low",
    ),
)

SOURCE = declare(
    key(
        "exactly.once.support",
        str,
        "Kafka Connect's word for what always holds here: a source's records and its position "
        "are one commit. Either value is taken, and nothing depends on it.",
        default="requested",
        valid=one_of("requested", "required", ignore_case=True),
        group="Exactly once",
        importance="low",
    ),
)

SINK = declare(
    key(
        "topics",
        list,
        "The topics that the connector reads.",
        default=[],
        importance="high",
        group="Common",
        width="long",
        aliases=("connect.topicnames", "connect.topicname"),
    ),
    key(
        "topics.regex",
        re.Pattern,
        "Reads all topics whose whole name matches, in place of `topics`.",
        importance="high",
        group="Common",
    ),
    key(
        "errors.deadletterqueue.topic.name",
        str,
        "The topic that gets the records that failed, with `errors.tolerance=all`; empty: none.",
        default="",
        group="Errors",
    ),
    key(
        "errors.deadletterqueue.topic.queues",
        int,
        "Queues of that topic where it has to be created.",
        default=8,
        valid=at_least(1),
        group="Errors",
        aliases=(
            "errors.deadletterqueue.write.queue.nums",
            "errors.deadletterqueue.read.queue.nums",
        ),
    ),
    key(
        "errors.deadletterqueue.context.headers.enable",
        bool,
        "Whether dead letters tell in `__connect.errors.*` headers what happened, and where.",
        default=True,
        group="Errors",
        aliases=("errors.deadletterqueue.context.properties.enable",),
    ),
    key(
        "errors.put.tolerance",
        str,
        "What a record does that the sink itself refuses: `none` stops the task; `all` finds the "
        "record by halving the batch, and treats it as `errors.tolerance=all` treats others.",
        default="none",
        valid=one_of("none", "all", ignore_case=True),
        group="Errors",
    ),
    key(
        "consume.from.where",
        str,
        "Where a queue is begun for which no offset was ever committed; `earliest` is `first`.",
        default="first",
        valid=one_of("first", "earliest", "latest", ignore_case=True),
        group="Common",
        importance="low",
        aliases=("consumer.override.auto.offset.reset",),
    ),
    key(
        "batch.max.records",
        int,
        "Most records that one call of `put` gets.",
        default=10_000,
        valid=at_least(1),
        group="Limits",
        importance="low",
    ),
)

REFUSED: Mapping[str, str] = {
    "offsets.storage.topic": (
        "positions are part of the commit record of each task, so there is no topic to choose. "
        "Leave the key out; REST's offsets show and change them."
    ),
    "task.class": "the connector's class names its tasks. Leave the key out.",
    "connector.direct.enable": (
        "records always pass a topic, so that none is lost. Leave the key out, and give the "
        "source and the sink a connector each."
    ),
}
"""Keys of others that cannot mean anything here, with the reason."""


def common_keys(role: Role) -> ConfigDeclaration:
    """Give the keys that every connector of a role has.

    >>> "topics" in common_keys("sink"), "topics" in common_keys("source")
    (True, False)
    """
    return COMMON | (SINK if role == "sink" else SOURCE)


def normal(texts: Mapping[str, str], role: Role = "sink") -> dict[str, str]:
    """Put the common keys' own names in place of their other names.

    Raises
    ------
    ConnectorConfigError
        When two names of the same key have different values.

    Examples
    --------
    >>> normal({"max.tasks": "2", "connect.topicnames": "a;b"})
    {'tasks.max': '2', 'topics': 'a,b'}
    >>> normal({"connect.topicname": "lines"}, "source")
    {'topic': 'lines'}
    """
    named = dict(texts)
    aliases = {alias: one.name for one in common_keys(role) for alias in one.aliases}
    if role == "source":
        aliases["connect.topicname"] = "topic"
    for alias, name in aliases.items():
        if alias in named:
            text = _translated(alias, named.pop(alias))
            if named.setdefault(name, text) != text:
                message = f"The keys {name} and {alias} mean the same and disagree: leave one out."
                raise ConnectorConfigError.of([(name, message)])
    return named


def _translated(alias: str, text: str) -> str:
    if alias.startswith("connect.topicname"):
        # RocketMQ Connect's page says comma, its code says semicolon.
        return text.replace(";", ",")
    return "first" if text.lower() == "earliest" else text


def common_problems(texts: Mapping[str, str], role: Role) -> list[ConfigProblem]:
    """Name what is wrong with the common keys taken together."""
    problems = [
        ConfigProblem(name, f"The key {name} has no place here: {REFUSED[name]}")
        for name in texts
        if name in REFUSED
    ]
    if role == "sink":
        problems += _topic_problems(texts)
    return problems


def _topic_problems(texts: Mapping[str, str]) -> list[ConfigProblem]:
    topics = [name.strip() for name in texts.get("topics", "").split(",") if name.strip()]
    pattern = texts.get("topics.regex", "").strip()
    dead = texts.get("errors.deadletterqueue.topic.name", "").strip()
    if bool(topics) == bool(pattern):
        both = "both are given" if topics else "none is given"
        message = f"A sink needs one of topics and topics.regex, and {both}."
        return [ConfigProblem("topics", message)]
    if dead and (dead in topics or (pattern and _matches(pattern, dead))):
        message = (
            f"The dead-letter topic {dead} is one of the topics that the connector reads, so a "
            "record that fails would come back for ever."
        )
        return [ConfigProblem("errors.deadletterqueue.topic.name", message)]
    return []


def _matches(pattern: str, topic: str) -> bool:
    try:
        return re.fullmatch(pattern, topic) is not None
    except re.error:
        # The key itself is reported as wrong.
        return False
