"""Tables that are read from topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from headrace.serdes import Deserializer, Serde, TableDeserializer, as_deserializer, with_key
from headrace.streams.tables import GlobalTable, kept_table

if TYPE_CHECKING:
    from headrace.streams._flow import Flow
    from headrace.streams.tables import Table

__all__ = ["TableSources"]

K = TypeVar("K")
V = TypeVar("V")


class TableSources:
    """What a builder reads as tables: topics whose newest message of each key counts."""

    @overload
    def table(
        self, topic: str, deserializer: Serde[V], *, name: str | None = None, **options: Any
    ) -> Table[str, V]: ...
    @overload
    def table(
        self,
        topic: str,
        deserializer: Deserializer[K, V],
        *,
        name: str | None = None,
        **options: Any,
    ) -> Table[K, V]: ...
    def table(
        self, topic: str, deserializer: Any, *, name: str | None = None, **options: Any
    ) -> Any:
        """Read a topic as a table: the newest value of each key.

        A message with an empty body deletes its key.  A message without a key cannot be read
        (``on_error`` decides), or is left out and counted as ``null_keys`` where the deserializer
        takes it.

        Parameters
        ----------
        topic
            Name of the topic.
        deserializer
            A serde of the values, where keys are text; or a deserializer that gives keys, such as
            ``serdes.with_key(serdes.json, of=int)``.
        name
            Name of the table and of its state store, ``table-TOPIC`` unless given.
        options
            Those of :meth:`source`.  A table that is quiet holds back the windows behind a join
            with it for ``idle_timeout``, 10 seconds unless given.

        Raises
        ------
        TopologyError
            The deserializer is neither, or an option cannot work.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").table("people", serdes.json)
        <table 'table-people'>
        """
        return kept_table(self._changes(topic, deserializer, name, options), name)

    @overload
    def global_table(
        self, topic: str, deserializer: Serde[V], *, name: str | None = None, **options: Any
    ) -> GlobalTable[str, V]: ...
    @overload
    def global_table(
        self,
        topic: str,
        deserializer: Deserializer[K, V],
        *,
        name: str | None = None,
        **options: Any,
    ) -> GlobalTable[K, V]: ...
    def global_table(
        self, topic: str, deserializer: Any, *, name: str | None = None, **options: Any
    ) -> Any:
        """Read a topic as a table that every partition has whole.

        So streams can look up any key in it without moving; see :meth:`Stream.join`.  For tables
        that are small.

        Parameters
        ----------
        topic, deserializer, name, options
            As :meth:`table` has them; the rows lie in the stores of the joins.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").global_table("countries", serdes.json)
        <global table 'source-countries'>
        """
        return GlobalTable(self._changes(topic, deserializer, name, options))

    def _changes(
        self, topic: str, deserializer: Any, name: str | None, options: dict[str, Any]
    ) -> Flow:
        if isinstance(deserializer, Serde):
            deserializer = with_key(deserializer)
        reader = deserializer
        if not isinstance(reader, Deserializer) and callable(reader):
            reader = as_deserializer(reader)
        wrapped = TableDeserializer(reader) if isinstance(reader, Deserializer) else reader
        source = None if name is None else f"{name}-source"
        stream = cast("Any", self).source(topic, wrapped, name=source, **options)
        flow: Flow = stream._flow  # noqa: SLF001 - of the same front door
        return flow
