"""Where connectors are in what they read: kept by the data plane, shown and set by REST."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from headrace.connect.worker.answers import OffsetEntry
from headrace.connect.worker.refusals import NotReadyError

__all__ = ["NoPositions", "PositionStore"]


class PositionStore(Protocol):
    """The positions that the data plane has committed.

    Those of a source are its own; those of a sink have the partition ``rocketmq_topic``,
    ``rocketmq_broker``, ``rocketmq_queue_id`` and the offset ``rocketmq_queue_offset``.
    """

    async def read(self, connector: str, config: Mapping[str, str]) -> Sequence[OffsetEntry]:
        """Give what is committed."""

    async def alter(
        self, connector: str, config: Mapping[str, str], entries: Sequence[OffsetEntry]
    ) -> None:
        """Commit other positions; the connector does not run."""

    async def reset(self, connector: str, config: Mapping[str, str]) -> None:
        """Forget all positions; the connector does not run."""


class NoPositions:
    """Stands where a worker has no data plane."""

    async def read(self, connector: str, config: Mapping[str, str]) -> Sequence[OffsetEntry]:
        """Nothing is committed."""
        return []

    async def alter(
        self, connector: str, config: Mapping[str, str], entries: Sequence[OffsetEntry]
    ) -> None:
        """Refuse."""
        raise NotReadyError("this worker has no data plane that could keep offsets")

    async def reset(self, connector: str, config: Mapping[str, str]) -> None:
        """There is nothing to forget."""
