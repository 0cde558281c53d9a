"""The keys of transforms, predicates and converters: each plugin's own, behind a prefix."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.connect.config.declaration import (
    COMMON,
    SINK,
    SOURCE,
    ConfigDeclaration,
    ConfigProblem,
)
from headrace.connect.config.kinds import not_empty
from headrace.errors import ConnectorConfigError

# The keys that every connector has: their other names, and what holds for them together.

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


LinkKind = Literal["transforms", "predicates", "converters", "header_converters"]
"""What a link is, by the family of its plugin."""

CONVERTERS: Mapping[str, LinkKind] = {
    "key.converter": "converters",
    "value.converter": "converters",
    "header.converter": "header_converters",
}
"""The keys that name converters, each with the family that it chooses from."""

_OURS = ("type", "class", "predicate", "negate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One plugin that a connector's config puts between outside and topic.

    Examples
    --------
    >>> (found,), _ = links({"transforms": "cut", "transforms.cut.type": "Cut", "transforms.cut.n": "3"})
    >>> found.plugin, found.texts
    ('Cut', {'n': '3'})
    """

    kind: LinkKind
    #: The name that the config gives it; of a converter, its key.
    alias: str
    #: What its keys begin with.
    prefix: str
    #: The name of its plugin.
    plugin: str
    #: Its own keys, without the prefix.
    texts: Mapping[str, str]
    #: The predicate that decides which records a transform sees.
    predicate: str | None = None
    #: Whether it sees those for which the predicate is false.
    negate: bool = False


def links(texts: Mapping[str, str]) -> tuple[list[Link], list[ConfigProblem]]:
    """Read the transforms and predicates of a config, each list in its order.

    Names are compared whole: the keys of ``Replace02`` are never taken for those of ``Replace``.
    """
    found: list[Link] = []
    problems: list[ConfigProblem] = []
    kinds: tuple[LinkKind, ...] = ("predicates", "transforms")
    for kind in kinds:
        aliases = [part.strip() for part in texts.get(kind, "").split(",") if part.strip()]
        if len(set(aliases)) < len(aliases):
            message = f"The key {kind} is {texts[kind]!r}: it names one of them twice."
            problems.append(ConfigProblem(kind, message))
        for alias in dict.fromkeys(aliases):
            link, wrong = _link(kind, alias, _own_keys(texts, kind, alias, aliases))
            problems += wrong
            if link is not None:
                found.append(link)
    return found, problems + _predicate_problems(found)


def _own_keys(
    texts: Mapping[str, str], kind: str, alias: str, aliases: Sequence[str]
) -> dict[str, str]:
    prefix = f"{kind}.{alias}."
    # With the names a and a.b, the keys of a.b are not those of a.
    longer = tuple(
        f"{kind}.{one}." for one in aliases if one != alias and one.startswith(f"{alias}.")
    )
    return {
        name.removeprefix(prefix): text
        for name, text in texts.items()
        if name.startswith(prefix) and not name.startswith(longer or "\0")
    }


def _link(
    kind: LinkKind, alias: str, own: Mapping[str, str]
) -> tuple[Link | None, list[ConfigProblem]]:
    prefix = f"{kind}.{alias}."
    plugin = own.get("type", own.get("class", "")).strip()
    if not plugin:
        message = f"The key {prefix}type is missing: {kind} names {alias}, so it needs a type."
        return None, [ConfigProblem(f"{prefix}type", message)]
    problems = []
    if own.get("class", plugin).strip() != plugin:
        message = f"The keys {prefix}type and {prefix}class mean the same and disagree."
        problems.append(ConfigProblem(f"{prefix}type", message))
    negate = own.get("negate", "false").strip().lower()
    if negate not in {"true", "false"}:
        message = f"The key {prefix}negate is {own['negate']!r}: it is neither true nor false."
        problems.append(ConfigProblem(f"{prefix}negate", message))
    ours = _OURS if kind == "transforms" else _OURS[:2]
    link = Link(
        kind=kind,
        alias=alias,
        prefix=prefix,
        plugin=plugin,
        texts={name: text for name, text in own.items() if name not in ours},
        predicate=own.get("predicate") if kind == "transforms" else None,
        negate=kind == "transforms" and negate == "true",
    )
    return link, problems


def _predicate_problems(found: Sequence[Link]) -> list[ConfigProblem]:
    known = {one.alias for one in found if one.kind == "predicates"}
    return [
        ConfigProblem(
            f"{one.prefix}predicate",
            f"The key {one.prefix}predicate is {one.predicate!r}, which predicates does not name.",
        )
        for one in found
        if one.predicate is not None and one.predicate not in known
    ]


def converter_links(texts: Mapping[str, str]) -> list[Link]:
    """Read the converters that a config names; those that it leaves to the worker are not here.

    >>> converter_links({"key.converter": "json", "key.converter.schemas.enable": "false"})[0].texts
    {'schemas.enable': 'false'}
    """
    return [
        Link(
            kind=kind,
            alias=name,
            prefix=f"{name}.",
            plugin=texts[name].strip(),
            texts={
                one.removeprefix(f"{name}."): text
                for one, text in texts.items()
                if one.startswith(f"{name}.")
            },
        )
        for name, kind in CONVERTERS.items()
        if not_empty().allows(texts.get(name, ""))
    ]
