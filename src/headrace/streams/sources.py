"""Sources: what can be said of the topics that a job reads, and of the times in them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar

from headrace.errors import TopologyError
from headrace.serdes import Deserializer, Serde, as_deserializer, plain, serde_for
from headrace.serdes.inference import hint_name
from headrace.serdes.messages import required_parameters
from headrace.topology import Origin, RecordFunction, Source, Start
from headrace.topology.callers import Caller, caller

if TYPE_CHECKING:
    from headrace.columns import Schema
    from headrace.streams.builder import StreamBuilder
    from headrace.topology import ErrorPolicy, Operator


# What the front door learns from a call: the user's line, and whether a function fits.


def check_record_function(
    label: str, function: object, origin: Origin, *, awaits: bool = False
) -> bool:
    """Refuse what takes neither a value nor key and value; tell whether it takes the key.

    A function with two required positional parameters takes key and value, any other the value.

    Raises
    ------
    TopologyError
        It is not callable, takes other arguments, or is a coroutine function where none is
        awaited.
    """
    takes_key = callable(function) and required_parameters(function) == 2
    parameters = ("key", "value") if takes_key else ("value",)
    check_function(label, function, parameters, origin, awaits=awaits)
    return takes_key


def record_function(label: str, function: Callable[..., Any], origin: Origin) -> RecordFunction:
    """Make a part of an operator of a function of the value, or of key and value."""
    return RecordFunction(function, check_record_function(label, function, origin))


def check_function(
    label: str,
    function: object,
    parameters: tuple[str, ...],
    origin: Origin,
    *,
    awaits: bool = False,
) -> None:
    """Refuse what cannot be called with an operator's arguments.

    Raises
    ------
    TopologyError
        It is not callable, takes other arguments, or is a coroutine function.
    """
    call = f"function({', '.join(parameters)})"
    if not callable(function):
        raise TopologyError(
            f"{label} at {origin} needs a function, not {function!r:.100}",
            hint=f"it is called as {call}",
        )
    if inspect.iscoroutinefunction(function) and not awaits:
        raise TopologyError(
            f"{label} at {origin} cannot await {_name(function)}, a coroutine function",
            hint="pass an ordinary function, or call it with map_async",
        )
    if not accepts(function, len(parameters)):
        raise TopologyError(
            f"{label} at {origin} calls {call}, which {_name(function)} does not accept",
            hint=f"give it {len(parameters)} positional parameter"
            + ("s" if len(parameters) > 1 else ""),
        )


def accepts(function: Callable[..., Any], count: int) -> bool:
    """Tell whether a function can be called with so many arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return str(name).rpartition("<locals>.")[2]


# What all streams share: a place in the graph, and what is known of keys and values there.


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the keys, or the values, that an operator gives."""

    hint: Any = Any
    #: Declared with ``serde=``, or that of the source.
    serde: Serde[Any] | None = None
    #: The operator that made them.
    operator: str = ""
    origin: Origin | None = None
    #: Columns of what operators over columns give; elsewhere they follow from serde or type.
    columns: Schema | None = None

    def serde_or_plain(self) -> Serde[Any]:
        """Return the serde for them, plain data where none is known."""
        return self.serde or serde_for(self.hint) or plain

    def needed_serde(self, needer: str, why: str) -> Serde[Any]:
        """Return the serde for them.

        Raises
        ------
        TopologyError
            Their type is known and has no serde.
        """
        serde = self.serde or serde_for(self.hint)
        if serde is None:
            kind = hint_name(self.hint)
            raise TopologyError(
                f"operator '{self.operator}' (made at {self.origin}) gives values of type {kind},"
                f" and '{needer}' {why}, but no serde is known for {kind}",
                hint=f"name one where the values are made: serde=serdes.json_of({kind}), or a"
                " serde of your own",
            )
        return serde

    def check_key(self, needer: str) -> None:
        """Refuse keys of a known type that is not plain data.

        Raises
        ------
        TopologyError
            Their type is known and has no canonical encoding.
        """
        if serde_for(self.hint) is None:
            kind = hint_name(self.hint)
            raise TopologyError(
                f"operator '{self.operator}' (made at {self.origin}) gives keys of type {kind},"
                f" which '{needer}' cannot route: keys are plain data, so that equal keys have"
                " equal bytes; no serde= changes that",
                hint=f"key by something plain that identifies the {kind}: a str, an int, a tuple"
                " of such",
            )


@dataclass(frozen=True, slots=True)
class Flow:
    """A place in the graph of one builder."""

    builder: StreamBuilder
    #: The operator whose records flow here.
    operator: str
    #: Source that names derive from.
    place: str
    key: Known = field(default_factory=Known)
    value: Known = field(default_factory=Known)

    def begin(
        self,
        label: str,
        name: str | None,
        origin: Caller | None = None,
        *,
        on_error: ErrorPolicy = "fail",
    ) -> NextOperator:
        """Start an operator that takes what flows here."""
        made_by = caller() if origin is None else origin
        return NextOperator(self, self.builder.name_for(label, self.place, name), made_by, on_error)


@dataclass(frozen=True, slots=True)
class NextOperator:
    """An operator about to be added."""

    flow: Flow
    name: str
    caller: Caller
    on_error: ErrorPolicy = "fail"

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that every operator has."""
        return {
            "name": self.name,
            "parents": (self.flow.operator,),
            "origin": self.caller.origin,
            "on_error": self.on_error,
        }

    def known(self, hint: Any, serde: Serde[Any] | None = None) -> Known:
        """Describe keys or values that this operator makes."""
        return Known(hint, serde, self.name, self.caller.origin)

    def add(
        self, operator: Operator, *, key: Known | None = None, value: Known | None = None
    ) -> Flow:
        """Add the operator and give the place behind it; what is not given stays as it was."""
        self.flow.builder.add(operator)
        return replace(
            self.flow,
            operator=operator.name,
            key=self.flow.key if key is None else key,
            value=self.flow.value if value is None else value,
        )


V = TypeVar("V")

Topics = str | Sequence[str] | re.Pattern[str]
"""A topic, several, or a pattern that whole names of topics must match."""


class SourceOptions(TypedDict, Generic[V], total=False):
    """What :meth:`StreamBuilder.source` takes by name, and its defaults."""

    #: Where the record's time comes from: ``"message"``, the born time (the default); ``"wall"``,
    #: the clock of the batch; or a function of the value that gives an aware datetime or ms since
    #: 1970 (None: the born time).
    timestamp: Callable[[V], datetime | int | None] | Literal["message", "wall"]
    #: How far a record may lag behind the newest of its queue before it is late; 2 seconds.
    allowed_lateness: timedelta
    #: So long a queue may be silent before event time goes on without it, as far as the furthest
    #: where all are; 10 seconds.  None: the others wait for it for ever.
    idle_timeout: timedelta | None
    #: Records so far ahead of their store time are counted and move no watermark; one day, by
    #: ``JobSettings.max_future``.
    max_future: timedelta | None
    #: Where to begin: ``"first"``, ``"latest"``, an aware datetime, or offsets by queue number or
    #: by queue name; as ``JobSettings.start`` says by default.
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
    """Check what was said of a source and make it.

    Raises
    ------
    TopologyError
        Something of it cannot work.
    """
    if isinstance(deserializer, Deserializer | Serde):
        reader = as_deserializer(deserializer)
    else:
        check_function("source", deserializer, ("body",), made_by.origin)
        reader = as_deserializer(deserializer, made_by.names)
    what = f"source '{fields['name']}' at {made_by.origin}"
    timestamp = options.get("timestamp", "message")
    if timestamp not in ("message", "wall"):
        check_function("source(timestamp=...)", timestamp, ("value",), made_by.origin)
    check_durations(what, options)
    _check_start(what, options.get("start"))
    return Source(**fields, topic=_checked(what, topics), deserializer=reader, **options)


def place_of(topics: Topics) -> str:
    """Choose what a source and the operators behind it are named after.

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
        f"source at {caller().origin} reads a topic, several, or a pattern, not {given!r:.100}",
        hint="for example 'orders', ['web', 'shop'] or re.compile('orders-.*')",
    )


def check_durations(what: str, options: Mapping[str, Any]) -> None:
    """Refuse durations that are none.

    Raises
    ------
    TopologyError
        One of them is negative or not a ``timedelta``.
    """
    for name in ("allowed_lateness", "idle_timeout", "max_future"):
        value = options.get(name)
        if value is None and (name != "allowed_lateness" or name not in options):
            continue
        if not isinstance(value, timedelta) or value < timedelta(0):
            raise TopologyError(
                f"{what} has {name}={value!r}",
                hint="give a timedelta that is not negative, e.g. timedelta(seconds=5)",
            )


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
