"""Where connectors are in what they read: kept by the data plane, shown and set by REST."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.connect.worker.answers import OffsetEntry

__all__ = ["PositionStore"]


class PositionStore(Protocol):
    """The positions that the data plane has committed, under a name that is mostly the connector's.

    Those of a source are its own; those of a sink have the partition ``rocketmq_topic``,
    ``rocketmq_broker``, ``rocketmq_queue_id`` and the offset ``rocketmq_queue_offset``.
    """

    async def read(self, kept_as: str, config: Mapping[str, str]) -> Sequence[OffsetEntry]:
        """Give what is committed."""

    async def alter(
        self, kept_as: str, config: Mapping[str, str], entries: Sequence[OffsetEntry]
    ) -> None:
        """Commit other positions; the connector does not run."""

    async def reset(self, kept_as: str, config: Mapping[str, str]) -> None:
        """Forget all positions; the connector does not run."""
