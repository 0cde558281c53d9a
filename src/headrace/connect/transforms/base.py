"""What every transform is: a function of one record, with declared config."""

from __future__ import annotations

from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from headrace.connect.config import Config, ConfigDeclaration, declare
from headrace.connect.records import SinkRecord, SourceRecord

if TYPE_CHECKING:
    from headrace.connect.schema import Schema


Record = TypeVar("Record", SourceRecord, SinkRecord)
"""A record of a source or of a sink: a transform returns the kind that it takes."""


class Transform(ABC):
    """Changes one record at a time, on its way into a topic or out of one.

    An instance belongs to one task, and one thread calls all its methods.

    Examples
    --------
    >>> from headrace.connect.config import key
    >>> class AddPrefix(Transform):
    ...     config = declare(key("prefix", str, "What topics begin with.", required=True))
    ...
    ...     def configure(self, config):
    ...         self.prefix = config["prefix"]
    ...
    ...     def apply(self, record):
    ...         return record.replace(topic=self.prefix + record.topic)
    """

    #: Shown with the plugin.
    version: ClassVar[str] = "undefined"
    #: Declared once: validation, docs and typed values come from it.
    config: ClassVar[ConfigDeclaration] = declare()

    def configure(self, config: Config) -> None:  # noqa: B027 - many have nothing to prepare
        """Take the config; called once, before the first record.

        Raise ``ValueError`` or :class:`~headrace.errors.ConnectorConfigError` to refuse it.
        """

    @abstractmethod
    def apply(self, record: Record) -> Record | Sequence[Record] | None:
        """Return the changed record, several in its place, or ``None`` to drop it."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release everything; called once, after the last record."""


class SidedTransform(Transform):
    """A transform of the key or of the value: the same code, two plugins.

    A subclass has :meth:`change`; :func:`both_sides` makes the plugins of it.
    """

    #: ``key`` or ``value``.
    side: ClassVar[str]

    @abstractmethod
    def change(
        self, record: SourceRecord | SinkRecord, schema: Schema | None, value: Any
    ) -> tuple[Schema | None, Any]:
        """Return the new schema and value of the side."""

    def apply(self, record: Record) -> Record | Sequence[Record] | None:
        """Change the side, and leave the rest of the record alone."""
        if self.side == "key":
            schema, key = self.change(record, record.key_schema, record.key)
            return record.replace(key_schema=schema, key=key)
        schema, value = self.change(record, record.value_schema, record.value)
        return record.replace(value_schema=schema, value=value)


Sided = TypeVar("Sided", bound=Transform)


def both_sides(transform: type[Sided]) -> tuple[type[Sided], type[Sided]]:
    """Make the two plugins of a transform that has a side, such as CastKey and CastValue."""
    name = transform.__name__

    def of(side: str) -> Any:
        shown = {"__module__": transform.__module__, "__doc__": f"{name} on the {side}."}
        return ABCMeta(f"{name}{side.capitalize()}", (transform,), {"side": side, **shown})

    return of("key"), of("value")
