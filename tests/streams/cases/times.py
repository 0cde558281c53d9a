"""What cases say of time, in the product's words: windows, and bounds of joins."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

__all__ = ["NotYetError", "interval", "milliseconds", "window"]


class NotYetError(AssertionError):
    """A case needs what the product does not have."""


def milliseconds(count: int) -> timedelta:
    """Give a time span of the file's unit."""
    return timedelta(milliseconds=count)


def window(kind: str, params: Mapping[str, Any]) -> Any:
    """Make the window that a case names."""
    raise NotYetError(f"not yet: windows ({kind}, {params})")


def interval(before: int, after: int, params: Mapping[str, Any]) -> Any:
    """Make the bound of an interval join."""
    raise NotYetError(f"not yet: joins within -{before} to +{after}, {params}")
