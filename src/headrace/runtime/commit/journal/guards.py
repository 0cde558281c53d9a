"""The safeguards of the protocol on RocketMQ; only tests switch one off."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

__all__ = ["JournalGuards"]

_VARIABLE = "HEADRACE_UNSAFE"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalGuards:
    """What keeps results exact; without any of them a fault test fails.

    Examples
    --------
    >>> JournalGuards.from_environment({"HEADRACE_UNSAFE": "lease"})
    JournalGuards(publish_tail=True, read_back=True, lease=False, first_copies=True, mend=True)
    """

    #: After any doubt, look what of a batch is in its target queues before sending the rest.
    publish_tail: bool = True
    #: Read the commit topic back to a record before acting on it.
    read_back: bool = True
    #: Wait until the driver before this one has surely stopped, and stop before it may have.
    lease: bool = True
    #: Leave late repetitions out when state is read.
    first_copies: bool = True
    #: Write state again that a late repetition would hide from compaction.
    mend: bool = True

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Read what to leave out from ``HEADRACE_UNSAFE``, which names guards of brokers too."""
        off = environ.get(_VARIABLE, "").split(",")
        return cls(**{field.name: field.name not in off for field in fields(cls)})
