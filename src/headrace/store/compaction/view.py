"""A queue's log as it stood at one moment: what readers hold while the files change."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.store.compaction.data_file import DataFile
    from headrace.store.compaction.manifest import FileMeta

__all__ = ["Part", "View"]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A file, as far as this view reaches into it."""

    meta: FileMeta
    file: DataFile


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """The files of a log in the order of their offsets; never changed."""

    #: Closed files, none of them empty.
    closed: tuple[Part, ...]
    #: The file that is appended to.
    active: Part
    #: The next offset.
    log_end: int
    clean_until: int
    #: Parts that hold records, and the last offset of each.
    parts: tuple[Part, ...] = field(init=False)
    lasts: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        parts = self.closed + ((self.active,) if self.active.meta.count else ())
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "lasts", tuple(part.meta.last for part in parts))

    @property
    def min_offset(self) -> int:
        """First readable offset, or the log's end."""
        return self.parts[0].meta.first if self.parts else self.log_end

    def first_part(self, offset: int) -> int:
        """Find the first part that holds something at or behind an offset."""
        return bisect_left(self.lasts, offset)
