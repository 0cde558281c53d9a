"""How long messages are kept: retention, and the topics that keep the newest of each key."""

from __future__ import annotations

import dataclasses
import logging
import re
import types
from collections.abc import Iterable
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from headrace._setting import named_values, parse_duration
from headrace.errors import SettingsError, StoreError
from headrace.protocol.attributes import CLEANUP_POLICY
from headrace.protocol.transactions import COMMIT_TOPIC_SUFFIX
from headrace.store.compaction import CompactionSettings

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.protocol.routes import TopicConfig


COMPACTED = {CLEANUP_POLICY: "COMPACTION"}
"""The attribute of topics that keep the newest message of each key."""

logger = logging.getLogger(__name__)

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def is_compacted(config: TopicConfig) -> bool:
    """Whether a topic keeps the newest message of each key; commit topics of jobs always do."""
    policy = config.attributes.get(CLEANUP_POLICY)
    return policy == "COMPACTION" or config.topic_name.endswith(COMMIT_TOPIC_SUFFIX)


def keep_as_configured(core: Core, config: TopicConfig) -> Future[None] | None:
    """Have the store compact a topic that is to be compacted; None when it does, or need not."""
    if not is_compacted(config) or not core.writable:
        return None
    if config.topic_name in core.store.compacted_topics():
        return None
    return core.store.compact_topic(config.topic_name)


def compact_all(core: Core) -> None:
    """Compact every topic that is to be. Caller: the start of the broker."""
    started = [
        future for config in core.topics.configs() if (future := keep_as_configured(core, config))
    ]
    for future in started:
        try:
            future.result()
        except StoreError as error:
            # The broker serves what it has; the next start tries again.
            logger.warning("a topic could not be compacted: %s", error)


def parse_size(text: str) -> int:
    """Read a number of bytes such as ``100GiB``, ``500 MB`` or ``4096``.

    Raises
    ------
    SettingsError
        When the text is no number of bytes.

    Examples
    --------
    >>> parse_size("1.5 KiB"), parse_size("2MB"), parse_size("7")
    (1536, 2000000, 7)
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise SettingsError(f"{text!r} is no number of bytes", hint="Write 4096, 500 MB or 100GiB.")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].lower()])


def parse_retention(text: str) -> timedelta | None:
    """Read how long messages are kept: a duration, or ``forever``.

    Raises
    ------
    SettingsError
        When the text is neither.

    Examples
    --------
    >>> parse_retention("72 h"), parse_retention("forever")
    (datetime.timedelta(days=3), None)
    """
    if text.strip().lower() == "forever":
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise SettingsError(f"{text!r} is no duration: {error}") from None


def parse_compaction(texts: Iterable[str]) -> CompactionSettings:
    """Read settings of compaction given as ``name=value``.

    Raises
    ------
    SettingsError
        When one has no such name or no such value.

    Examples
    --------
    >>> parse_compaction(["dirty_ratio=0.3", "file_size=64MiB", "max_lag=1 h"]).max_lag
    datetime.timedelta(seconds=3600)
    """
    kinds = get_type_hints(CompactionSettings)
    names = sorted(field.name for field in dataclasses.fields(CompactionSettings))
    given: dict[str, Any] = {}
    for name, value in named_values(texts, names, "there is no setting {} of compaction"):
        try:
            given[name] = _read(kinds[name], value)
        except ValueError as error:
            message = f"the setting {name} of compaction is {value!r}: {error}"
            raise SettingsError(message) from None
    return CompactionSettings(**given)


def _read(kind: Any, text: str) -> Any:
    if get_origin(kind) in (types.UnionType, Union):
        if text.lower() == "none":
            return None
        kind = next(each for each in get_args(kind) if each is not type(None))
    if kind is timedelta:
        return timedelta(0) if text == "0" else parse_duration(text)
    if kind is int:
        return parse_size(text)
    return float(text) if kind is float else text
