"""Where a source stands in the order of a field, and how it asks for what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import DeserializationError

__all__ = ["Cursor", "request"]

#: Documents that share a value of the field are told apart by their ids, which are kept.
_MOST_IDS = 10_000


@dataclass(frozen=True, slots=True)
class Cursor:
    """The value of the last document that was read, and the ids of all that have it.

    Examples
    --------
    >>> Cursor().behind(7, "a").behind(7, "b")
    Cursor(value=7, ids=('a', 'b'))
    >>> Cursor(7, ("a", "b")).behind(9, "c").offset()
    {'value': 9, 'ids': ['c']}
    """

    value: Any = None
    ids: tuple[str, ...] = ()

    @classmethod
    def of(cls, offset: Mapping[str, Any] | None) -> Cursor:
        """Read it out of a committed offset."""
        return cls() if offset is None else cls(offset["value"], tuple(offset.get("ids", ())))

    def offset(self) -> dict[str, Any]:
        """Write it as an offset that is committed."""
        return {"value": self.value, "ids": list(self.ids)}

    def behind(self, value: Any, document: str) -> Cursor:
        """Go on behind a document.

        Raises
        ------
        DeserializationError
            Where too many documents share a value.
        """
        if value != self.value:
            return Cursor(value, (document,))
        if len(self.ids) == _MOST_IDS:
            message = f"More than {_MOST_IDS} documents have the value {value!r} of cursor.field."
            raise DeserializationError(message, hint="Choose a field that tells documents apart.")
        return Cursor(value, (*self.ids, document))


def request(
    cursor: Cursor, field: str, *, most: int, until: str | None, filters: Sequence[Any] = ()
) -> dict[str, Any]:
    """Ask for the documents behind a cursor, in the order of the field.

    Parameters
    ----------
    most
        Most documents.
    until
        Leaves out documents from this time on, in the words of the cluster, such as ``now-5s``.
    filters
        What documents have to meet besides.
    """
    bounds = {
        **({} if cursor.value is None else {"gte": cursor.value}),
        **({} if until is None else {"lt": until}),
    }
    wanted = {"range": {field: bounds}} if bounds else {"exists": {"field": field}}
    return {
        "size": most,
        # An index whose documents have not had the field yet has none to give.
        "sort": [{field: {"order": "asc", "unmapped_type": "long"}}],
        "track_total_hits": False,
        "query": {
            "bool": {
                "filter": [wanted, *filters],
                "must_not": [{"ids": {"values": list(cursor.ids)}}],
            }
        },
    }
