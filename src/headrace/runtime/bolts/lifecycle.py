"""The order of callbacks: which ones begin a batch for a task.  Pure: numbers in, names out.

A task of a component is served by instances, copies of the user's object, one after the other and
each in one process.  What an instance has in memory is worth keeping for the next batch only if it
is what the last commit says; else the instance is dropped and another one begins with the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from headrace.runtime.control import Control
    from headrace.runtime.state.interface import Attempted

__all__ = ["BatchNumbers", "Opening", "Standing", "opening"]

Opening = Literal["prepare", "init_state", "roll_back", "ack_commit"]
"""A callback that may come before the first tuple of a batch."""


@dataclass(frozen=True, slots=True)
class BatchNumbers:
    """Which batch runs."""

    #: First epoch of the driver's life.
    life: int
    epoch: int
    batch: int
    #: Whether it is the first batch of its epoch.
    begins_epoch: bool = False

    @classmethod
    def of(cls, control: Control) -> BatchNumbers:
        """Read them from what the driver tells."""
        lineage = control.lineage
        begins = not lineage or lineage[-1][0] != control.epoch
        return cls(control.life or control.epoch, control.epoch, control.batch, begins)

    @property
    def rolls_back(self) -> bool:
        """Whether a batch failed before it within the driver's life."""
        return self.begins_epoch and self.epoch > self.life


@dataclass(slots=True)
class Standing:
    """What an instance has lived through."""

    life: int
    epoch: int
    #: The batch that it finished last; 0 for none.
    finished: int = 0
    #: Whether it has begun a batch and not finished it.
    running: bool = False
    #: The batch whose commit it was told of last.
    acked: int = 0
    #: The attempt that wrote the state which it goes on from; None where there is none.
    wrote: Attempted | None = None

    def serves(self, numbers: BatchNumbers, saved: Attempted | None, *, keeps: bool = True) -> bool:
        """Tell whether the instance can go on with a batch.

        Parameters
        ----------
        numbers
            The batch.
        saved
            The attempt that wrote the state which the batch begins with.
        keeps
            Whether the component keeps state in memory; else an instance serves any batch.
        """
        if self.running or self.life != numbers.life:
            return False
        if not keeps:
            return True
        if numbers.rolls_back and self.epoch < numbers.epoch:
            # It is told to go back, so it does not matter where it is.
            return True
        follows = self.epoch == numbers.epoch and self.finished == numbers.batch - 1
        return follows and self.wrote == saved

    def is_stale(self, numbers: BatchNumbers, *, keeps: bool = True) -> bool:
        """Tell whether the instance cannot serve this batch or any later one."""
        if self.life != numbers.life:
            return True
        same = self.epoch == numbers.epoch
        return keeps and same and not self.running and self.finished < numbers.batch - 1


def opening(standing: Standing | None, numbers: BatchNumbers) -> list[Opening]:
    """Give the callbacks that begin a batch, for a component that keeps state.

    Parameters
    ----------
    standing
        Of the instance that goes on; None for one that is new.
    numbers
        The batch.

    Examples
    --------
    >>> opening(None, BatchNumbers(life=1, epoch=1, batch=1, begins_epoch=True))
    ['prepare', 'init_state']
    >>> opening(None, BatchNumbers(life=1, epoch=2, batch=5, begins_epoch=True))
    ['prepare', 'init_state', 'roll_back', 'ack_commit']
    """
    steps: list[Opening] = ["prepare", "init_state"] if standing is None else []
    if numbers.rolls_back:
        steps.append("roll_back")
    if numbers.batch - 1 > (0 if standing is None else standing.acked):
        steps.append("ack_commit")
    return steps
