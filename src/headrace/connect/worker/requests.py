"""Names of requests."""

from __future__ import annotations

import uuid

__all__ = ["new_request"]


def new_request() -> str:
    """Name a request, so that its record is known again and counts once."""
    return uuid.uuid4().hex
