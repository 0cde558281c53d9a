"""Sources: the topics that a job reads, and the options of reading them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, TypedDict, TypeVar

from headrace.errors import TopologyError
from headrace.serdes import Deserializer, Serde, as_deserializer
from headrace.serdes.inference import document_serde_for
from headrace.streams.flow import check_function
from headrace.topology import Source, Start
from headrace.topology.callers import Caller, caller
from headrace.topology.windows import length_of

V = TypeVar("V")

Topics = str | Sequence[str] | re.Pattern[str]
"""A topic, several topics, or a pattern that must match whole names of topics."""


class SourceOptions(TypedDict, Generic[V], total=False):
    """Keyword arguments of :meth:`StreamBuilder.source`, with their defaults."""

    #: Where the record's time comes from: ``"message"``, the born time (the default); ``"wall"``,
    #: the clock of the batch; or a function of the value that returns an aware datetime or ms since
    #: 1970 (None: the born time).
    timestamp: Callable[[V], datetime | int | None] | Literal["message", "wall"]
    #: How far a record may lag behind the newest of its queue before it is late; 2 seconds.
    allowed_lateness: timedelta | str
    #: How long a queue may be silent before event time advances without it, or to the furthest
    #: queue if all are silent; 10 seconds.  None: the others wait for it for ever.
    idle_timeout: timedelta | str | None
    #: Records that are further ahead of their store time are counted and do not advance the
    #: watermark; the default is ``JobSettings.max_future``, one day.
    max_future: timedelta | str | None
    #: Where to begin: ``"first"``, ``"latest"``, an aware datetime, or offsets by queue number or
    #: by queue name; the default is ``JobSettings.start``.
    start: Start | None
    #: Whether ``start`` holds for the first start of the job only, which is the default.
    start_once: bool


def make_source(
    fields: Mapping[str, Any],
    topics: Topics,
    deserializer: object,
    made_by: Caller,
    options: SourceOptions[Any],
) -> Source:
    """Check the arguments of a source and make it.

    Raises
    ------
    TopologyError
        One of them cannot work.
    """
    if not isinstance(deserializer, Deserializer | Serde) and not document_serde_for(deserializer):
        check_function("source", deserializer, ("body",), made_by.origin)
    reader = as_deserializer(deserializer, made_by.names)
    what = f"source '{fields['name']}' at {made_by.origin}"
    timestamp = options.get("timestamp", "message")
    if timestamp not in ("message", "wall"):
        check_function("source(timestamp=...)", timestamp, ("value",), made_by.origin)
    _check_start(what, options.get("start"))
    given: dict[str, Any] = {**options, **durations_of(what, options)}
    return Source(**fields, topic=_checked(what, topics), deserializer=reader, **given)


def place_of(topics: Topics) -> str:
    """Choose the name after which a source and the operators after it are named.

    >>> place_of("lines"), place_of(["lines", "words"]), place_of(re.compile("orders-.*"))
    ('lines', 'lines', 'orders')
    """
    if isinstance(topics, str):
        return topics
    if isinstance(topics, re.Pattern):
        return re.sub(r"[^A-Za-z0-9_-]+", "", topics.pattern).strip("-_") or "topics"
    given: object = topics
    if not isinstance(given, Sequence) or not all(isinstance(topic, str) for topic in given):
        raise _no_topics(topics)
    return topics[0] if topics else "topics"


def _no_topics(given: object) -> TopologyError:
    return TopologyError(
        f"source at {caller().origin} takes a topic, some topics or a pattern, not {given!r:.100}",
        hint="for example 'orders', ['web', 'shop'] or re.compile('orders-.*')",
    )


def durations_of(what: str, options: Mapping[str, Any]) -> dict[str, timedelta | None]:
    """Return the durations among options.

    Raises
    ------
    TopologyError
        One of them is negative or no duration.
    """
    names = options.keys() & {"allowed_lateness", "idle_timeout", "max_future"}
    return {
        name: None
        if options[name] is None and name != "allowed_lateness"
        else length_of(options[name], f"{name} of {what}")
        for name in names
    }


def _checked(what: str, topics: Topics) -> str | tuple[str, ...] | re.Pattern[str]:
    if isinstance(topics, str | re.Pattern):
        return topics
    if not topics or len(set(topics)) < len(topics):
        raise TopologyError(
            f"{what} reads the topics {list(topics)!r}",
            hint="name at least one topic, and each once",
        )
    return tuple(topics)


def _check_start(what: str, start: object) -> None:
    if start is None or start in ("first", "latest"):
        return
    if isinstance(start, datetime) and start.tzinfo is not None:
        return
    if isinstance(start, Mapping) and all(
        isinstance(queue, str | int) and isinstance(offset, int) and offset >= 0
        for queue, offset in start.items()
    ):
        return
    raise TopologyError(
        f"{what} has start={start!r}",
        hint="start is 'first', 'latest', a datetime with a time zone, or offsets such as {0: 17}"
        " by queue number or {'lines@broker-a@0': 17} by queue name",
    )
