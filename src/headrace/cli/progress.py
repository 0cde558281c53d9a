"""Shows how a job gets on: a live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.cli._terminal import say, short_driver, terminal
from headrace.errors import HeadraceError
from headrace.watched import watched_thread

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType
    from rich.progress import Progress, ProgressColumn, Task

    from headrace.runtime.commit.drivers import LeaseWait


# What a user sees while state is restored: nothing for short restores, one bar for long ones.

#: Restores that take no longer than this are not worth a word, s.
_PATIENCE = 1.0


@dataclass(frozen=True, slots=True)
class Restore:
    """A restore at one moment, over all stores and partitions."""

    #: State messages read, and to read.
    done: int
    total: int
    seconds: float
    over: bool = False

    def __str__(self) -> str:
        if self.over:
            return f"restored state · {self.total:,} messages in {self.seconds:.1f} s"
        share = self.done / self.total if self.total else 0
        return f"restoring state · {share:.0%} · {self.done:,} of {self.total:,} messages"


class RestoreWatch:
    """Sums many restores up to one, from the figures of those that run at a moment.

    Stores and partitions are restored side by side.  The figures leave out those that are done;
    they still count here, so that the sum never goes back.

    Parameters
    ----------
    clock
        Returns seconds.

    Examples
    --------
    >>> watch = RestoreWatch(iter([0.0, 2.0, 3.0, 4.0]).__next__)
    >>> print(watch.see(10, 200))
    None
    >>> print(watch.see(150, 200))
    restoring state · 75% · 150 of 200 messages
    >>> print(watch.see(60, 80))
    restoring state · 90% · 180 of 200 messages
    >>> print(watch.see(0, 0))
    restored state · 200 messages in 4.0 s
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.monotonic
        self._began: float | None = None
        self._finished = 0
        self._running = 0
        self._shown = False

    def see(self, done: int, total: int) -> Restore | None:
        """Take what running restores have read and have to read; return what to show."""
        if not total:
            return None if self._began is None else self._ended(self._began)
        now = self._clock()
        if self._began is None:
            self._began = now
        self._finished += max(0, self._running - total)
        self._running = total
        if now - self._began <= _PATIENCE:
            return None
        self._shown = True
        return Restore(self._finished + done, self._finished + total, now - self._began)

    def _ended(self, began: float) -> Restore | None:
        total, shown = self._finished + self._running, self._shown
        self._began, self._finished, self._running, self._shown = None, 0, 0, False
        return Restore(total, total, self._clock() - began, over=True) if shown else None


_LIVE_INTERVAL = 0.25
_PLAIN_INTERVAL = 1.0
#: How many looks pass for each line.
_PLAIN_LOOKS = 5


class JobProgress(Protocol):
    """The statistics of a job that are shown."""

    @property
    def epoch(self) -> int:
        """Number of this driver among all that ran the job."""

    @property
    def batch(self) -> int:
        """Last committed batch."""

    @property
    def records_in(self) -> int:
        """Records read."""

    @property
    def records_out(self) -> int:
        """Results written."""

    @property
    def lag(self) -> int | None:
        """Records that wait; None before that is known."""

    @property
    def records_per_second(self) -> float:
        """Rate of the last batches."""

    @property
    def restored(self) -> int:
        """State messages read by the restores that run now."""

    @property
    def to_restore(self) -> int:
        """State messages that they have to read in all."""

    @property
    def groups(self) -> int:
        """The number of jobs that it is the sum of."""

    @property
    def failed(self) -> int:
        """How many of them have failed for good."""

    @property
    def waiting(self) -> LeaseWait | None:
        """What it waits for before it begins."""


def line_of(progress: JobProgress) -> str:
    """Return the state of a job in one line; that of several groups is summed."""
    if progress.waiting is not None:
        return _wait_of(progress.waiting)
    lag = "unknown" if progress.lag is None else f"{progress.lag:,}"
    return (
        f"{_place_of(progress)} · {progress.records_in:,} in · "
        f"{progress.records_out:,} out · {progress.records_per_second:,.0f} records/s · "
        f"lag {lag}"
    )


def ending_of(progress: JobProgress) -> str:
    """Return a sentence about how far a stopped job has come."""
    if not progress.epoch:
        return "Stopped before it began."
    batch = f"batch {progress.batch:,}" if progress.groups == 1 else f"{progress.batch:,} batches"
    return f"Stopped after {batch}; the next start goes on from there."


def _place_of(progress: JobProgress) -> str:
    if progress.groups == 1:
        return f"epoch {progress.epoch} · batch {progress.batch}"
    failed = f" ({progress.failed} failed)" if progress.failed else ""
    return f"{progress.groups} groups{failed} · {progress.batch:,} batches"


def _wait_of(wait: LeaseWait) -> str:
    driver = short_driver(wait.driver) or "another driver"
    begun = f"since {_clock(wait.since)}"
    if wait.until is None:
        return f"{driver} runs this job, or has its lease · waiting for its end {begun}"
    return f"waiting until {driver} has surely stopped · {begun} · until {_clock(wait.until)}"


def _clock(at: datetime) -> str:
    return f"{at.astimezone():%H:%M:%S}"


@contextlib.contextmanager
def shown(
    statistics: Callable[[], JobProgress], name: str, *, to_the_end: bool = False
) -> Iterator[None]:
    """Show a job's progress for as long as the context lasts.

    Parameters
    ----------
    statistics
        Asked from a thread of its own.
    name
        The job's name.
    to_the_end
        Whether there is an end to reach, so that a bar makes sense.
    """
    console = terminal(error=True)
    if not console.is_terminal:
        with _repeated(_teller(statistics, name), _PLAIN_INTERVAL):
            yield
        return
    with _live(name, to_the_end=to_the_end) as progress:
        task = progress.add_task(name, total=None, state="starting")
        bar = progress.add_task("", total=None, state="", visible=False)
        watch = RestoreWatch()

        def refresh() -> None:
            now = statistics()
            restore = watch.see(now.restored, now.to_restore)
            if restore is None or restore.over:
                progress.update(bar, visible=False)
            else:
                progress.update(
                    bar,
                    completed=restore.done,
                    total=restore.total,
                    state=str(restore),
                    visible=True,
                    refresh=True,
                )
            if restore is not None and restore.over:
                progress.console.print(f"{name} · {restore}", markup=False)
            known = to_the_end and now.lag is not None
            total = now.records_in + (now.lag or 0) if known else None
            progress.update(task, completed=now.records_in, total=total, state=line_of(now))

        with _repeated(refresh, _LIVE_INTERVAL):
            yield
        with contextlib.suppress(HeadraceError):
            refresh()


def _teller(statistics: Callable[[], JobProgress], name: str) -> Callable[[], None]:
    told = ""
    looks = 0
    watch = RestoreWatch()

    def tell() -> None:
        nonlocal told, looks
        now = statistics()
        restore = watch.see(now.restored, now.to_restore)
        looks += 1
        if looks % _PLAIN_LOOKS and not (restore is not None and restore.over):
            return
        line = line_of(now) if restore is None else str(restore)
        # A job that waits for records has nothing new to say.
        if line != told:
            say(f"{name} · {line}")
        told = line

    return tell


def _live(name: str, *, to_the_end: bool) -> Progress:
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    state = TextColumn("{task.fields[state]}", markup=False)
    title = TextColumn(f"[bold]{name}[/bold]")
    return Progress(
        title,
        _middle(to_the_end=to_the_end),
        state,
        TimeElapsedColumn(),
        console=terminal(error=True),
        transient=False,
    )


def _middle(*, to_the_end: bool) -> ProgressColumn:
    """Show a bar where there is an end to reach, or else a spinner."""
    from rich.progress import BarColumn, ProgressColumn, SpinnerColumn

    bar, spinner = BarColumn(bar_width=24), SpinnerColumn()

    class Middle(ProgressColumn):
        def render(self, task: Task) -> RenderableType:
            return (spinner if task.total is None and not to_the_end else bar).render(task)

    return Middle()


@contextlib.contextmanager
def _repeated(action: Callable[[], None], interval: float) -> Iterator[None]:
    over = threading.Event()
    failures: list[BaseException] = []

    def repeat() -> None:
        while not over.wait(interval):
            # The broker may be away for a moment; the job says so itself when it gives up.
            with contextlib.suppress(HeadraceError):
                action()

    thread = watched_thread(repeat, name="headrace-progress", on_failure=failures.append)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    for failure in failures:
        raise failure
