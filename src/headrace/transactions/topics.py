"""Topics as spouts and as end bolts, and spouts that are addressed by offset."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from headrace.errors import TopologyError
from headrace.topology import (
    DEFAULT_STREAM,
    CustomGrouping,
    GroupingKind,
    Origin,
    SpoutCollector,
    Start,
    TaskContext,
)
from headrace.topology.callers import caller
from headrace.transactions.components import FieldsDeclarer, KeyValueBolt, OffsetSpout, Spout
from headrace.transactions.journal import JournalSpout

if TYPE_CHECKING:
    from headrace.serdes import Deserializer, Serde, Serializer


# What users say about a topology, component by component, before it is checked as a whole.

Role = Literal["spout", "bolt", "sink"]
"""How a component was added."""


@dataclass(frozen=True, slots=True)
class Input:
    """A subscription as it was declared."""

    #: Name of the component that emits.
    source: str
    stream: str
    kind: GroupingKind
    fields: tuple[str, ...]
    custom: CustomGrouping | None
    origin: Origin


@dataclass(frozen=True, slots=True)
class Declared:
    """A component as it was added."""

    name: str
    role: Role
    #: The user's object.
    component: Any
    parallelism: int
    origin: Origin
    #: Names of the fields of each stream.
    streams: dict[str, tuple[str, ...]] = field(default_factory=dict)
    direct_streams: frozenset[str] = frozenset()
    inputs: tuple[Input, ...] = ()

    def taking(self, inputs: list[Input]) -> Declared:
        """Return the same component with its subscriptions."""
        return replace(self, inputs=tuple(inputs))


class _Subscribing:
    """Collects the subscriptions of one component."""

    def __init__(self, component: str) -> None:
        self._component = component
        self.inputs: list[Input] = []

    def __repr__(self) -> str:
        return f"<inputs of '{self._component}'>"

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Take the tuples of a component's stream, spread evenly over the tasks."""
        return self._take("shuffle", component, stream)

    def local_or_shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Take the tuples where they are emitted if possible, otherwise spread evenly."""
        return self._take("local_or_shuffle", component, stream)

    def fields_grouping(self, component: str, *fields: str, stream: str = DEFAULT_STREAM) -> Self:
        """Take tuples with the same values of some fields in the same task.

        Parameters
        ----------
        component
            Name of the component that emits them.
        fields
            Names of the fields.
        stream
            The stream of the component.
        """
        return self._take("fields", component, stream, fields)

    def _take(
        self,
        kind: GroupingKind,
        component: str,
        stream: str,
        fields: tuple[str, ...] = (),
        custom: CustomGrouping | None = None,
    ) -> Self:
        new = Input(component, stream, kind, fields, custom, caller().origin)
        for known in self.inputs:
            if (known.source, known.stream) == (component, stream):
                raise TopologyError(
                    f"'{self._component}' takes stream '{stream}' of '{component}' twice:"
                    f" at {known.origin} and at {new.origin}",
                    hint="leave one out: each tuple would come twice",
                )
        self.inputs.append(new)
        return self


class BoltDeclarer(_Subscribing):
    """Says which tuples a bolt takes, and in which of its tasks.

    Each method returns the declarer, so that a bolt may take several streams.

    Examples
    --------
    >>> declarer = BoltDeclarer("count")
    >>> declarer.fields_grouping("split", "word").all_grouping("commands")
    <inputs of 'count'>
    """

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Take every tuple in every task."""
        return self._take("all", component, stream)

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Take all tuples in task 0."""
        return self._take("global", component, stream)

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Take the tuples of a direct stream, each in the task that ``emit_direct`` named."""
        return self._take("direct", component, stream)

    def custom_grouping(
        self, component: str, grouping: CustomGrouping, stream: str = DEFAULT_STREAM
    ) -> Self:
        """Take each tuple in the tasks that ``grouping.choose(values, tasks)`` returns.

        Raises
        ------
        TopologyError
            If the grouping has no such method.
        """
        given: object = grouping
        if not callable(getattr(given, "choose", None)):
            raise TopologyError(
                f"custom_grouping of '{self._component}' at {caller().origin} is"
                f" {grouping!r:.100}, which has no method choose(values, tasks)",
                hint="give an object of a class with that method",
            )
        return self._take("custom", component, stream, custom=grouping)


class SinkDeclarer(_Subscribing):
    """Says which tuples are written to a topic.

    With ``fields_grouping`` the tuples with the same values of the fields are written by one task,
    in their order, and these values are the message's key; otherwise the task that emits a tuple
    writes it.

    Examples
    --------
    >>> SinkDeclarer("out").shuffle_grouping("count")
    <inputs of 'out'>
    """


class TopicSpout:
    """A topic whose messages are tuples: a spout that goes by the topic's own offsets.

    Parameters
    ----------
    topic
        Name of the topic, or several, or a compiled pattern that whole names match.
    deserializer
        A serde, a callable of the body, or a deserializer such as ``serdes.with_key(...)``.
    fields
        Names of the tuples' fields.  A single field holds the value; for several, the value is a
        mapping with these names, an object with these attributes, or a list or tuple.
    key_field
        Name of a field that holds the message's key; it stands before the others.
    start
        Where to begin: see :meth:`StreamBuilder.source`; as ``JobSettings.start`` says by default.
    start_once
        Whether ``start`` holds only until the job has read these topics.

    Examples
    --------
    >>> from headrace import serdes
    >>> TopicSpout("lines", serdes.string, fields=["line"])
    TopicSpout('lines', fields line)
    """

    def __init__(
        self,
        topic: str | Sequence[str] | re.Pattern[str],
        deserializer: Deserializer[Any, Any] | Serde[Any] | Callable[[bytes], Any],
        *,
        fields: Sequence[str] = ("value",),
        key_field: str | None = None,
        start: Start | None = None,
        start_once: bool = True,
    ) -> None:
        self.topic = topic if isinstance(topic, str | re.Pattern) else tuple(topic)
        self.deserializer = deserializer
        self.value_fields = _names("TopicSpout", fields)
        self.key_field = key_field
        self.start = start
        self.start_once = start_once

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of its tuples."""
        key = () if self.key_field is None else (self.key_field,)
        return (*key, *self.value_fields)

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        """Name the fields of its tuples."""
        declarer.declare(*self.fields)

    def __repr__(self) -> str:
        shown = self.topic.pattern if isinstance(self.topic, re.Pattern) else self.topic
        return f"TopicSpout({shown!r}, fields {', '.join(self.fields)})"


class TopicSink:
    """An end bolt that writes tuples to a topic, in the transaction of their batch.

    Parameters
    ----------
    topic
        Name of the topic.
    serializer
        A serde, or a callable of the value, or of key and value.  The value is that of the only
        field, or a dict of the fields by name.
    fields
        The fields that the value holds; all but the key's by default.
    key_field
        The field whose value is the message's key, which decides its queue; none by default.

    Examples
    --------
    >>> from headrace import serdes
    >>> TopicSink("counts", serdes.json, key_field="word")
    TopicSink('counts', key word)
    """

    def __init__(
        self,
        topic: str,
        serializer: Serializer[Any, Any] | Serde[Any] | Callable[..., bytes],
        *,
        fields: Sequence[str] | None = None,
        key_field: str | None = None,
    ) -> None:
        self.topic = topic
        self.serializer = serializer
        self.fields = None if fields is None else _names("TopicSink", fields)
        self.key_field = key_field

    def __repr__(self) -> str:
        key = "" if self.key_field is None else f", key {self.key_field}"
        return f"TopicSink({self.topic!r}{key})"


def _names(what: str, fields: Sequence[str]) -> tuple[str, ...]:
    given: object = fields
    if isinstance(given, str) or not fields:
        raise TopologyError(
            f"{what} at {caller().origin} has fields={fields!r}",
            hint="give the names of the fields in a list, at least one",
        )
    return tuple(fields)


class RecordOf:
    """Makes a message's key and value of a tuple.

    Parameters
    ----------
    key
        Places of the values that are the key; none for no key.
    values
        Places of the values that are the value.
    names
        Names of these.

    Examples
    --------
    >>> RecordOf((0,), (1,), ("count",))(None, ("be", 2))
    ('be', 2)
    >>> RecordOf((), (0, 1), ("word", "count"))(None, ("be", 2))
    (None, {'word': 'be', 'count': 2})
    """

    def __init__(
        self, key: tuple[int, ...], values: tuple[int, ...], names: tuple[str, ...]
    ) -> None:
        self._key = key
        self._values = values
        self._names = names

    def __call__(self, task: object, values: tuple[Any, ...]) -> tuple[Any, Any]:
        """Return key and value of one tuple, wherever it was sent."""
        del task
        key: Any = None
        if self._key:
            keys = tuple(values[place] for place in self._key)
            key = keys[0] if len(keys) == 1 else keys
        if len(self._values) == 1:
            return key, values[self._values[0]]
        parts = zip(self._names, self._values, strict=True)
        return key, {name: values[place] for name, place in parts}


class OffsetReader(Spout):
    """A spout that reads another one by its offsets: its state is the next offset.

    Parameters
    ----------
    spout
        The spout that is read.
    limit
        Most tuples of a batch, as the spout is told.
    """

    def __init__(self, spout: OffsetSpout, limit: int) -> None:
        self.spout = spout
        self._limit = limit
        self._next: Any = None

    def __repr__(self) -> str:
        return repr(self.spout)

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        """Name the fields that the spout emits."""
        self.spout.declare_output_fields(declarer)

    def prepare(self, context: TaskContext) -> None:
        """Prepare the spout."""
        self.spout.prepare(context)

    def init_state(self, state: Any) -> None:
        """Begin at an offset."""
        self._next = state

    def next_tuple(self, collector: SpoutCollector) -> None:
        """Emit the whole batch and end it: it goes exactly as far as its offset says."""
        end = self.spout.latest_offset(self._next, self._limit)
        if end == self._next:
            return
        emit = collector.emit
        for values in self.spout.read(self._next, end):
            emit(_listed(values))
        self._next = end
        collector.emit_barrier()

    def finish_batch(self) -> Any:
        """Return the offset at which the next batch begins."""
        return self._next

    def cleanup(self) -> None:
        """Clean the spout up."""
        self.spout.cleanup()


def _listed(values: Iterable[Any]) -> Sequence[Any]:
    return values if isinstance(values, list | tuple) else list(values)


# Kinds of components, derived from what they are and from their subscribers.

Kind = Literal["spout", "non-stateful bolt", "stateful bolt", "end bolt"]
"""The kind of a component; an end bolt may be a stateful bolt, too."""

_STATE: Final = ("init_state", "finish_batch", "commit", "roll_back", "ack_commit")
_SPOUT: Final = ("next_tuple", "prepare", "cleanup", "declare_output_fields")
_BOLT: Final = ("execute", "prepare", "cleanup", "declare_output_fields")


def is_stateful(component: object) -> bool:
    """Return whether a bolt keeps state: it has callbacks for state, or keeps values by key."""
    return isinstance(component, KeyValueBolt) or not _missing(component, _STATE)


def check_spout(what: str, component: object, origin: Origin) -> None:
    """Refuse what cannot be a spout.

    Raises
    ------
    TopologyError
        If it is a class, lacks methods, or cannot replay what it emitted.
    """
    if isinstance(component, TopicSpout | OffsetSpout):
        return
    if isinstance(component, JournalSpout):
        _check_object(what, component.spout, origin, "a spout")
        if missing := _missing(component.spout, _SPOUT):
            raise _incomplete(what, component.spout, origin, missing, "Spout")
        return
    _check_object(what, component, origin, "a spout")
    if missing := _missing(component, _SPOUT):
        raise _incomplete(what, component, origin, missing, "Spout")
    if missing := _missing(component, _STATE):
        raise TopologyError(
            f"{what} at {origin} is a {_name(component)}, which cannot replay what it emitted:"
            f" it has no {', '.join(missing)}",
            hint="subclass Spout and keep in its state where it stands, or OffsetSpout where"
            " tuples have offsets; or wrap it in JournalSpout, which writes what it emits to a topic"
            " first",
        )


def check_bolt(what: str, component: object, origin: Origin) -> None:
    """Refuse what cannot be a bolt.

    Raises
    ------
    TopologyError
        If it is a class, lacks methods, or has some of the callbacks for state but not all.
    """
    if isinstance(component, TopicSink):
        raise TopologyError(
            f"{what} at {origin} is a TopicSink", hint="add it with set_sink(id, TopicSink(...))"
        )
    _check_object(what, component, origin, "a bolt")
    if missing := _missing(component, _BOLT):
        raise _incomplete(what, component, origin, missing, "Bolt")
    if isinstance(component, KeyValueBolt):
        return
    missing = _missing(component, _STATE)
    # Either of these two alone says that state was meant.
    if missing and len({"init_state", "finish_batch"} & set(missing)) < 2:
        raise _incomplete(what, component, origin, missing, "StatefulBolt")


def outputs_of(what: str, component: Any, origin: Origin) -> FieldsDeclarer:
    """Ask a component for the streams that it emits to.

    Raises
    ------
    TopologyError
        If it fails, or names a field twice.
    """
    declarer = FieldsDeclarer()
    try:
        component.declare_output_fields(declarer)
    except Exception as error:
        raise TopologyError(
            f"declare_output_fields of {what} at {origin} raised {type(error).__name__}: {error}"
        ) from error
    for stream, fields in declarer.streams.items():
        given: tuple[object, ...] = fields
        if not all(isinstance(field, str) and field for field in given):
            raise TopologyError(
                f"{what} at {origin} declares for stream '{stream}' the fields {fields!r}",
                hint="names of fields are texts: declarer.declare('word', 'count')",
            )
        if len(set(fields)) < len(fields):
            raise TopologyError(
                f"{what} at {origin} declares for stream '{stream}' a field twice:"
                f" {', '.join(fields)}"
            )
    return declarer


def _missing(component: object, names: Sequence[str]) -> list[str]:
    return [name for name in names if not callable(getattr(component, name, None))]


def _check_object(what: str, component: object, origin: Origin, wanted: str) -> None:
    if inspect.isclass(component):
        name = component.__name__
        raise TopologyError(
            f"{what} at {origin} is the class {name}; {wanted} is an object of it",
            hint=f"write {name}(...)",
        )


def _incomplete(
    what: str, component: object, origin: Origin, missing: Sequence[str], base: str
) -> TopologyError:
    return TopologyError(
        f"{what} at {origin} is a {_name(component)}, which has no {', '.join(missing)}",
        hint=f"subclass headrace.transactions.{base}, or give it these methods",
    )


def _name(component: object) -> str:
    return type(component).__name__
