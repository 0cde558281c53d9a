"""What to look for among the keys of messages."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KeyQuery"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyQuery:
    """Which messages are wanted."""

    topic: str
    #: A word of the messages' keys, or their unique id.
    word: str
    #: Whether only a unique id counts.
    unique: bool = False
    #: Stored at this time or later, ms since 1970.
    begin: int = 0
    #: Stored at this time or before.
    end: int = 1 << 62
    #: At most so many, the newest.
    limit: int = 32
