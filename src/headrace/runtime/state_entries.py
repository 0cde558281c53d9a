"""Entries of state stores as people see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["StateEntry"]


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One entry of a state store."""

    #: The record key that it belongs to.
    key: Any
    value: Any
    #: Bounds of its window, ms since 1970; None where there is none.
    start: int | None = None
    end: int | None = None
    #: Which part of the operator's state it is, where there are several.
    part: str = ""
