"""Topics as spouts and as end bolts, and spouts that are addressed by offset."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from headrace.errors import TopologyError
from headrace.topology.callers import caller
from headrace.transactions.components import OffsetSpout, Spout

if TYPE_CHECKING:
    from headrace.serdes import Deserializer, Serde, Serializer
    from headrace.topology import SpoutCollector, Start, TaskContext
    from headrace.transactions.components import FieldsDeclarer

__all__ = ["OffsetReader", "RecordOf", "TopicSink", "TopicSpout"]


class TopicSpout:
    """A topic whose messages are tuples: a spout that goes by the topic's own offsets.

    Parameters
    ----------
    topic
        Name of the topic, or several, or a compiled pattern that whole names match.
    deserializer
        A serde, a callable of the body, or a deserializer such as ``serdes.with_key(...)``.
    fields
        Names of the tuples' fields.  One field: it holds the value; several: the value is a
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
        field, else a dict of the fields by name.
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
        """Give key and value of one tuple, wherever it was sent."""
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
    """A spout that reads another one by its offsets: its state is the next one.

    Parameters
    ----------
    spout
        What is read.
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
        """Give the offset at which the next batch begins."""
        return self._next

    def cleanup(self) -> None:
        """Clean the spout up."""
        self.spout.cleanup()


def _listed(values: Iterable[Any]) -> Sequence[Any]:
    return values if isinstance(values, list | tuple) else list(values)
