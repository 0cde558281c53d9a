"""``headrace run`` supervises: the driver is a process of its own, and is replaced when it dies."""

from __future__ import annotations

from headrace.cli.supervision.channel import (
    Channel,
    hand_over,
    stand_by,
    taken_over,
    telling_of,
    without_secrets,
)
from headrace.cli.supervision.supervisor import Supervisor

__all__ = [
    "Channel",
    "Supervisor",
    "hand_over",
    "stand_by",
    "taken_over",
    "telling_of",
    "without_secrets",
]
