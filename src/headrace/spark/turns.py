"""Turns that the batches of many jobs take, so that few run at once and none holds up the others.

A turn goes to who has used the least time, and not to who asked first.  Jobs are of three kinds, by
what their batches have been, and each kind has turns of its own.  So whoever keeps up with what
comes does not wait for who has much to do, nor either of them for who has yet to show that its
batches end at all.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["JobBatches", "BatchPace", "TurnTaker", "Turns"]

#: Whoever waits looks so often whether it still must, s.
_LOOK_SECONDS = 0.2
#: Batches that take less are quick, s; those of a job that keeps up may take longer.
_QUICK_SECONDS, _LIVE_SECONDS = 0.25, 1.0
#: Who is quick keeps its turn so many times as long as its batches take, and at least so long, s.
_KEPT_TIMES, _KEPT_SECONDS = 4, 0.1
#: Who is on trial keeps it so long, s.
_TRIAL_SECONDS = 1.0
#: A batch that takes longer has fewer records the next time, s.
_LONG_SECONDS = 1.0
#: How many records the first batch of a run may have, and the fewest that any batch may have.
_FIRST_RECORDS, _FEWEST_RECORDS = 10_000, 1_000
#: How much the last batch says of the next.
_WEIGHT = 0.25


class JobBatches(Enum):
    """What is known of a job's batches."""

    QUICK = "quick"
    SLOW = "slow"
    #: None has ended yet.
    ON_TRIAL = "on trial"


class Turns:
    """So many batches of each kind run at once, but for those that take long.

    Spark has more slots than there are turns: a batch that waits for code which hangs sits in one
    of those, and its turn is another's.

    Parameters
    ----------
    most
        Batches of a kind that have a turn at the same time.
    clock
        Gives the time, s.

    Examples
    --------
    >>> turns = Turns(1)
    >>> with turns.taker(60).turn():
    ...     with turns.taker(60).turn(unless=lambda: True) as mine:
    ...         mine
    False
    """

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        #: In the order in which they asked.
        self._waiting: list[_Turn] = []
        #: Those that have a turn.
        self._running: list[_Turn] = []
        #: What had been used, s, by each kind's last that had a turn: nobody saves up more.
        self._used = dict.fromkeys(JobBatches, 0.0)

    def taker(self, lasting: float) -> TurnTaker:
        """Return what a job takes its turns by.

        Parameters
        ----------
        lasting
            After so many seconds a turn may be another's, though its batch goes on; that of a
            quick job, or of one on trial, earlier.
        """
        return TurnTaker(self, lasting)

    @contextmanager
    def have(self, taker: TurnTaker, unless: Callable[[], bool]) -> Iterator[bool]:
        """Wait for a turn and have it until the block is left; tell whether there was one."""
        with self._lock:
            mine = _Turn(taker, taker.kind)
            taker.join(mine.kind, self._used[mine.kind])
            self._waiting.append(mine)
            self._hand_out()
        begin = None
        try:
            while not (got := mine.come.wait(_LOOK_SECONDS)) and not unless():
                with self._lock:
                    self._hand_out()
            begin = self._clock()
            yield got
        finally:
            with self._lock:
                if begin is not None:
                    taker.note(self._clock() - begin)
                for those in (self._waiting, self._running):
                    if mine in those:
                        those.remove(mine)
                self._hand_out()

    def _hand_out(self) -> None:
        """Give turns to those that wait, also what others have had for long."""
        now = self._clock()
        for kind in {turn.kind for turn in self._waiting}:
            waiting = [turn for turn in self._waiting if turn.kind is kind]
            kept = [turn for turn in self._running if turn.kind is kind and turn.until > now]
            self._running = [turn for turn in self._running if turn.kind is not kind] + kept
            waiting.sort(key=lambda turn: turn.taker.used)
            for turn in waiting[: max(0, self._most - len(kept))]:
                self._used[kind] = max(self._used[kind], turn.taker.used)
                turn.until = now + turn.taker.kept_seconds
                self._waiting.remove(turn)
                self._running.append(turn)
                turn.come.set()


@dataclass(slots=True)
class BatchPace:
    """How many records a batch may have, so that it is not long what others wait for.

    Examples
    --------
    >>> pace = Pace()
    >>> pace.note(pace.most, seconds=0.2)
    >>> pace.most
    40000
    >>> pace.note(40_000, seconds=4.0)
    >>> pace.most
    10000
    """

    most: int = _FIRST_RECORDS

    def note(self, records: int, seconds: float) -> None:
        """Note how many a batch had, and how long it took."""
        if seconds > _LONG_SECONDS:
            self.most = max(_FEWEST_RECORDS, min(self.most, int(records * _LONG_SECONDS / seconds)))
        elif records >= self.most and seconds < _LONG_SECONDS / 2:
            self.most *= 2 if seconds > _LONG_SECONDS / 4 else 4


@dataclass(slots=True, eq=False)
class TurnTaker:
    """One job, and what it has had of the turns."""

    turns: Turns
    lasting: float
    #: Time that its batches have taken, s, and those of others before it came.
    used: float = 0.0
    #: How long its batches take, s; None: nobody knows.
    usual: float | None = None
    #: How long the last one took, s.
    last: float = 0.0
    #: Whether the last one had all that there was, and that was not much.
    live: bool = False
    #: How many records the next one may have, where the driver chooses.
    pace: BatchPace = field(default_factory=BatchPace)
    #: Of which kind it was when it last asked.
    joined: JobBatches | None = None

    @property
    def kind(self) -> JobBatches:
        """Tell what is known of its batches."""
        if self.usual is None:
            return JobBatches.ON_TRIAL
        quick = self.usual < (_LIVE_SECONDS if self.live else _QUICK_SECONDS)
        return JobBatches.QUICK if quick else JobBatches.SLOW

    @property
    def kept_seconds(self) -> float:
        """Tell how long it keeps a turn for which others wait."""
        if self.usual is None:
            return min(self.lasting, _TRIAL_SECONDS)
        if self.kind is JobBatches.SLOW:
            return self.lasting
        return min(self.lasting, max(_KEPT_SECONDS, _KEPT_TIMES * self.usual))

    def turn(self, *, unless: Callable[[], bool] = lambda: False) -> AbstractContextManager[bool]:
        """Wait for a turn and have it until the block is left; tell whether there was one.

        Parameters
        ----------
        unless
            Tells that the wait is over: the block runs without a turn.
        """
        return self.turns.have(self, unless)

    def committed(self, records: int) -> None:
        """Note how many records the last batch had."""
        self.live = records < min(self.pace.most, _FIRST_RECORDS)
        self.pace.note(records, self.last)

    def join(self, kind: JobBatches, used: float) -> None:
        """Ask among those of a kind, of which the last that had a turn has used so much, s."""
        self.used = max(self.used, used) if kind is self.joined else used
        self.joined = kind

    def note(self, seconds: float) -> None:
        """Note how long a batch has taken."""
        self.used += seconds
        self.last = seconds
        if self.usual is None:
            self.usual = seconds
        else:
            self.usual += _WEIGHT * (seconds - self.usual)


@dataclass(slots=True, eq=False)
class _Turn:
    """What one batch waits for."""

    taker: TurnTaker
    kind: JobBatches
    #: Nobody takes it from it before that time.
    until: float = 0.0
    come: threading.Event = field(default_factory=threading.Event)
