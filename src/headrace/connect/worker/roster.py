"""The copies that a worker has, what it asks connectors, and what deleted ones leave behind."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Collection, Iterator, KeysView, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from headrace.connect.lifecycle import Cause, Phase, UnitState
from headrace.connect.log import (
    ClusterView,
    ConnectorEntry,
    Leftover,
    LeftoversGone,
    Outcome,
    Record,
    TasksPut,
    TasksWanted,
)
from headrace.connect.naming import UnitId
from headrace.connect.worker.following import new_request
from headrace.errors import HeadraceError, MessageTooLargeError

if TYPE_CHECKING:
    from headrace.connect.worker.launching import Host, Launcher, UnitCopy
    from headrace.connect.worker.settings import WorkerSettings


logger = logging.getLogger(__name__)

#: Ended copies that can still be told of.
_ENDED = 500
#: Seconds between two tries.
_PAUSE = 1.0
#: Stands for the time of a mark whose logs are gone.
_DONE = float("inf")


class Roster:
    """Keeps each copy until it is proven gone, and counts what became of all of them."""

    def __init__(self) -> None:
        self._here: dict[UnitId, UnitCopy] = {}
        self._ended: OrderedDict[tuple[str, int | None], UnitCopy] = OrderedDict()
        self._runs: dict[UnitId, None] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        #: Tasks that run, as an immutable snapshot; from any thread.
        self.running: tuple[UnitId, ...] = ()
        #: Copies that were started, had to be killed, ended in Error.
        self.launched = self.forced = self.failed = 0

    def __iter__(self) -> Iterator[UnitCopy]:
        """Return all copies that are not proven gone, whatever is done with them meanwhile."""
        return iter(list(self._here.values()))

    def units(self) -> KeysView[UnitId]:
        """Return the copies that are not proven gone."""
        return self._here.keys()

    def get(self, unit: UnitId) -> UnitCopy | None:
        """Return a copy that is not proven gone."""
        return self._here.get(unit)

    def told(self) -> list[UnitCopy]:
        """Return all copies that can be told of: also the last one that ended of each unit."""
        return [*self._here.values(), *self._ended.values()]

    def add(self, copy: UnitCopy) -> None:
        """Take in a copy that is about to start."""
        self._ended.pop(_name(copy), None)
        self._here[copy.id] = copy
        self._empty.clear()
        self.launched += 1

    def note(self, copy: UnitCopy, state: UnitState) -> None:
        """Take note of a copy's new state."""
        if copy.id.task is not None and state.phase is not Phase.PENDING:
            self._publish(copy)
        if state.gone:
            self.forced += state.forced
            self.failed += state.phase is Phase.ERROR

    def drop(self, copy: UnitCopy) -> None:
        """Let go of a copy that is proven gone, but for what can be told of it."""
        self._here.pop(copy.id, None)
        self._ended.pop(_name(copy), None)
        self._ended[_name(copy)] = copy
        while len(self._ended) > _ENDED:
            self._ended.popitem(last=False)
        if not self._here:
            self._empty.set()

    def counts(self) -> Mapping[tuple[str, Phase], int]:
        """Count the copies that are not proven gone, by kind and phase."""
        counts: dict[tuple[str, Phase], int] = {}
        for unit, copy in self._here.items():
            key = "connector" if unit.task is None else "task", copy.unit.phase
            counts[key] = counts.get(key, 0) + 1
        return counts

    async def until_empty(self, patience: float) -> None:
        """Wait until all copies are proven gone, or until it takes too long."""
        try:
            await asyncio.wait_for(self._empty.wait(), patience)
        except TimeoutError:
            left = ", ".join(f"{copy.id.what} ({copy.pid})" for copy in self)
            logger.warning("the worker ends though these are not proven gone: %s", left)

    def _publish(self, copy: UnitCopy) -> None:
        if copy.unit.phase is Phase.RUNNING:
            self._runs[copy.id] = None
        else:
            self._runs.pop(copy.id, None)
        # One assignment: whoever reads it in another thread sees the old one or the new one.
        self.running = tuple(self._runs)


def _name(copy: UnitCopy) -> tuple[str, int | None]:
    return copy.id.connector, copy.id.task


# What deleted connectors leave behind: their positions go at once, what they printed later.


class Forgetter(Protocol):
    """Who runs connectors: the worker."""

    @property
    def view(self) -> ClusterView:
        """What is decided."""

    @property
    def settings(self) -> WorkerSettings:
        """How long what is kept."""

    async def append(self, record: Record) -> Outcome:
        """Put a record into the log."""

    def wakeup(self) -> None:
        """Look again what is to be done."""


class Forgetting:
    """Has removed what deleted connectors leave behind, once nothing of them lives.

    Parameters
    ----------
    forgetter
        Whose view says what can go.
    launcher
        Removes it.
    """

    def __init__(self, forgetter: Forgetter, launcher: Launcher) -> None:
        self._forgetter = forgetter
        self._launcher = launcher
        #: Since when each name has something to remove; since when it is a mark.
        self._due: dict[str, float] = {}
        self._marked: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def consider(self, *, first: bool) -> None:
        """Do what is due.

        Parameters
        ----------
        first
            Whether it is up to this worker; else it does what is left undone.
        """
        now = asyncio.get_running_loop().time()
        patience = 0.0 if first else self._forgetter.settings.rebalance_delay.total_seconds()
        entries = self._forgetter.view.entries
        unused = {name: entry.unused for name, entry in entries.items() if entry.leftovers}
        due = {name: leftovers for name, leftovers in unused.items() if leftovers}
        self._due = {name: self._due.get(name, now) for name in due}
        for name, leftovers in due.items():
            if now - self._due[name] >= patience and name not in self._tasks:
                work = self._forget(name, leftovers)
                self._tasks[name] = asyncio.get_running_loop().create_task(work, name=name)
                self._tasks[name].add_done_callback(self._done)
        self._drop_logs(now)

    async def stop(self) -> None:
        """Leave it to others, or to the next start."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task.get_name()]
        if not task.cancelled():
            task.result()
            self._forgetter.wakeup()

    async def _forget(self, name: str, leftovers: Sequence[Leftover]) -> None:
        try:
            for one in leftovers:
                await self._forget_one(name, one)
            gone = LeftoversGone(name=name, kept_as=[one.kept_as for one in leftovers])
            await self._forgetter.append(gone)
        except HeadraceError as error:
            logger.warning("what connector %s had committed is not removed yet: %s", name, error)
            await asyncio.sleep(_PAUSE)

    async def _forget_one(self, name: str, leftover: Leftover) -> None:
        try:
            await self._launcher.forget(leftover.kept_as, leftover.config)
        except HeadraceError as error:
            if error.retriable:
                raise
            logger.error(
                "what connector %s had committed stays, though nobody uses it: %s", name, error
            )

    def _drop_logs(self, now: float) -> None:
        view, age = self._forgetter.view, self._forgetter.settings.purge_after.total_seconds()
        marks = {name for name, entry in view.entries.items() if entry.deleted}
        old = {
            name
            for name, since in self._marked.items()
            if since < _DONE
            and (name not in view.entries or (name in marks and since + age <= now))
        }
        for name in old:
            self._launcher.drop_logs(name)
        self._marked = {
            name: _DONE if name in old else self._marked.get(name, now) for name in marks
        }


# Asking connectors for their tasks: once per config, and whenever they want it anew.


class Asker(Forgetter, Protocol):
    """Who needs the answers: the worker."""

    def host_of(self, unit: UnitId) -> Host | None:
        """Return the process of a connector that runs here."""

    def fail(self, unit: UnitId, cause: Cause) -> None:
        """Note that a connector could not say what its tasks are."""


class TaskReconfiguration:
    """Asks connectors that run here for their tasks, none of them twice at a time.

    Parameters
    ----------
    asker
        Who needs the answers.
    patience
        Seconds that a connector may take to answer: one that takes longer has failed.
    """

    def __init__(self, asker: Asker, patience: float) -> None:
        self._asker = asker
        self._patience = patience
        #: Connectors that want their tasks made anew, which the log does not say yet.
        self._wanted: set[str] = set()
        self._tasks: dict[tuple[str, str], asyncio.Task[bool]] = {}

    def want(self, connector: str) -> None:
        """Note for all workers that a connector or task wants the tasks made anew."""
        self._wanted.add(connector)
        self._start("want", connector)

    def ask(self, due: Collection[str]) -> None:
        """Ask the connectors that are due, and note what could not be noted before."""
        for name in list(self._wanted):
            self._start("want", name)
        for name in due:
            self._start("ask", name)

    async def stop(self) -> None:
        """Wait for no answer any more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, what: str, name: str) -> None:
        key = what, name
        if key not in self._tasks:
            work = self._ask(name) if what == "ask" else self._want(name)
            self._tasks[key] = asyncio.get_running_loop().create_task(work)
            self._tasks[key].add_done_callback(lambda task: self._done(key, task))

    def _done(self, key: tuple[str, str], task: asyncio.Task[bool]) -> None:
        del self._tasks[key]
        if not task.cancelled() and task.result():
            self._asker.wakeup()

    async def _want(self, name: str) -> bool:
        while name in self._wanted:
            self._wanted.discard(name)
            if not await self._appended(TasksWanted(name=name)):
                self._wanted.add(name)
                break
        return False  # who reads it in the log looks again

    async def _ask(self, name: str) -> bool:
        """Ask a connector; return whether there is more to do now."""
        view = self._asker.view
        entry = view.connector(name)
        unit = UnitId(name, None, 0 if entry is None else entry.generation)
        host = self._asker.host_of(unit)
        if entry is None or host is None:
            return False
        found = await self._answer(host, entry)
        if found is None:
            return False  # what ends is told of by its own states
        if isinstance(found, Cause):
            self._asker.fail(unit, found)
            return True
        record = TasksPut(
            request=new_request(),
            name=name,
            config_version=entry.version,
            configs=found,
            asked=view.position,
        )
        try:
            return await self._appended(record)
        except MessageTooLargeError as error:
            self._asker.fail(unit, Cause(error.message))
            return True

    async def _answer(
        self, host: Host, entry: ConnectorEntry
    ) -> list[dict[str, str]] | Cause | None:
        about = f"task_configs() of connector '{entry.name}'"
        asking = asyncio.ensure_future(host.task_configs())
        try:
            while not (await asyncio.wait([asking], timeout=self._patience))[0]:
                # What waits for something outside says so, and has its own patience.
                if not host.waits_for:
                    late = f"{about} did not return in time: it may take {self._patience:g} s"
                    return Cause(late)
            answer = asking.result()
        finally:
            asking.cancel()
        if answer is None or answer.failure is not None:
            return None if answer is None else answer.failure
        try:
            return msgspec.convert(answer.value, list[dict[str, str]])
        except msgspec.ValidationError as error:
            return Cause(f"{about} gave something else: {error}")

    async def _appended(self, record: Record) -> bool:
        """Put something into the log; where it cannot be written now, a later pass tries again."""
        try:
            await self._asker.append(record)
        except MessageTooLargeError:
            raise
        except HeadraceError as error:
            logger.warning("%s is not written: %s", type(record).__name__, error)
            return False
        return True
