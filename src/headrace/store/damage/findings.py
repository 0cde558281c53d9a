"""Findings: what an examination of a store says, each by file and offset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from headrace.store.entries import Loss


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that an examination found."""

    #: ``damage`` needs a repair; a ``remark`` does not.
    severity: Literal["damage", "remark"]
    path: Path
    #: What is wrong, and what that means for the store.
    text: str
    means: str
    #: First byte in the file, and number of bytes; None when it is the file as a whole.
    offset: int | None = None
    size: int | None = None
    #: Position in the log of the first byte.
    position: int | None = None
    #: Offsets of queues that were lost with it.
    losses: tuple[Loss, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON's types.

        >>> Finding("remark", Path("checkpoint"), "is missing", "costs time").as_json()["text"]
        'is missing'
        """
        losses = [
            {"topic": loss.topic, "deleted": True}
            if loss.is_delete
            else {
                "topic": loss.topic,
                "queue": loss.queue_id,
                "first_offset": loss.first,
                "last_offset": loss.end - 1,
            }
            for loss in self.losses
        ]
        return {
            "severity": self.severity,
            "file": str(self.path),
            "text": self.text,
            "means": self.means,
            "offset": self.offset,
            "size": self.size,
            "position": self.position,
            "lost": losses,
        }
