"""The transforms of a task, each with the predicate that stands before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from headrace.connect.handling.failures import Handling, Skipped
from headrace.connect.handling.retrying import HandlingStage
from headrace.connect.records import SinkRecord, SourceRecord

if TYPE_CHECKING:
    from headrace.connect.handling.failures import Origin
    from headrace.connect.predicates import Predicate
    from headrace.connect.transforms import Transform


Record = TypeVar("Record", SourceRecord, SinkRecord)


@dataclass(frozen=True, slots=True)
class TransformLink:
    """One transform, and for which records it is.

    Examples
    --------
    >>> from headrace.connect.predicates.record_is_tombstone import RecordIsTombstone
    >>> from headrace.connect.transforms.filter import Filter
    >>> link = TransformLink(Filter(), RecordIsTombstone(), negate=True)
    >>> record = SourceRecord(partition={}, offset={}, topic="t", value=1)
    >>> link.apply(record)
    []
    """

    transform: Transform
    predicate: Predicate | None = None
    #: Whether it is for the records for which the predicate does not hold.
    negate: bool = False

    def apply(self, record: Record) -> Sequence[Record]:
        """Return what comes out: the record itself where the transform is not for it."""
        if self.predicate is not None and self.predicate.holds(record) is self.negate:
            return [record]
        given = self.transform.apply(record)
        if given is None:
            return []
        return [given] if isinstance(given, SourceRecord | SinkRecord) else given

    def close(self) -> None:
        """Let transform and predicate go."""
        self.transform.close()
        if self.predicate is not None:
            self.predicate.close()


def transformed(
    links: Sequence[TransformLink],
    record: Record,
    origin: Origin,
    handling: Handling,
) -> Sequence[Record]:
    """Pass a record through all transforms; gives nothing where it was dropped or left out."""
    records: Sequence[Record] = [record]
    for link in links:
        given: list[Record] = []
        for one in records:
            step = handling.step(
                HandlingStage.TRANSFORMATION, link.transform, link.apply, one, origin
            )
            # A record that failed takes along what it was split into before.
            if isinstance(step, Skipped):
                return []
            given += step
        if not given:
            return given
        records = given
    return records
