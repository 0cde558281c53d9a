"""The keys that every connector has: their other names, and what holds for them together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from headrace.connect.config.declaration import COMMON, SINK, SOURCE, ConfigProblem
from headrace.errors import ConnectorConfigError

if TYPE_CHECKING:
    from headrace.connect.config.declaration import ConfigDeclaration


Role = Literal["source", "sink"]
"""Whether a connector brings records into topics or takes them out."""

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
    """Return the keys that every connector of a role has.

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
