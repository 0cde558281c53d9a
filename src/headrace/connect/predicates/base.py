"""What every predicate is: a question about one record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from headrace.connect.config import Config, ConfigDeclaration, declare

if TYPE_CHECKING:
    from headrace.connect.records import SinkRecord, SourceRecord


class Predicate(ABC):
    """Decides for which records a transform runs.

    ``transforms.x.predicate=name`` puts it before a transform, ``transforms.x.negate=true`` turns
    it round.

    Examples
    --------
    >>> class IsLarge(Predicate):
    ...     def holds(self, record):
    ...         return len(record.value or "") > 1000
    """

    #: Shown with the plugin.
    version: ClassVar[str] = "undefined"
    #: Declared once: validation, docs and typed values come from it.
    config: ClassVar[ConfigDeclaration] = declare()

    def configure(self, config: Config) -> None:  # noqa: B027 - many have nothing to prepare
        """Take the config; called once, before the first record."""

    @abstractmethod
    def holds(self, record: SourceRecord | SinkRecord) -> bool:
        """Return whether the transform is for this record."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release everything; called once, after the last record."""
