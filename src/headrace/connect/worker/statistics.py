"""Figures of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.connect.lifecycle import Phase

__all__ = ["WorkerStatistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatistics:
    """What a worker has and has done."""

    #: ``starting``, ``running``, ``stopping`` or ``stopped``.
    state: str
    #: Copies that are not proven gone, by kind and phase.
    copies: Mapping[tuple[str, Phase], int]
    launched: int
    #: Copies that had to be killed.
    forced: int
    #: Copies that ended in Error.
    failed: int
    #: Restarts that the worker made by itself.
    restarted: int
    passes: int
    log_position: int
    #: States that wait to be written.
    unwritten: int
