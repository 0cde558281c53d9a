"""The worker's side of a host: what it hears of its units, and the proof that they are gone."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.connect.channel import (
    AskTasks,
    Born,
    HostEnded,
    HostMessage,
    Left,
    Level,
    Messages,
    Pause,
    Reply,
    Stop,
    Told,
    encode,
)
from headrace.connect.lifecycle import (
    Cause,
    Exited,
    Failed,
    HostEvent,
    Started,
    Stopped,
    StopRaised,
    WaitsFor,
)
from headrace.connect.worker.launching import PluginAnswer
from headrace.watched import watched_task

if TYPE_CHECKING:
    import msgspec

    from headrace.connect.hosts.fork_client import Keeper


logger = logging.getLogger(__name__)

#: Seconds that a keeper has to end a host before it is killed itself.
_KEEPERS_PATIENCE = 1.0
#: Seconds in which a unit may still stop by itself before the others of its host are harmed, and
#: in which a host may end in which nobody is left.
_NEIGHBOURS_PATIENCE = 1.0


class WorkerEnd(asyncio.Protocol, ABC):
    """The worker's end of a channel to a process that it has started, and `kinds` of messages."""

    _messages: Messages

    def __init__(self, kinds: Any) -> None:
        self._kinds = kinds
        self._channel: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take note that the channel stands."""
        assert isinstance(transport, asyncio.Transport)
        self._channel = transport
        self._messages = Messages(self._kinds)

    def data_received(self, data: bytes) -> None:
        """Hear all messages that have come whole."""
        for message in self._messages.feed(data):
            self._hear(message)

    @abstractmethod
    def _hear(self, message: Any) -> None: ...

    def tell(self, message: msgspec.Struct) -> None:
        """Send a message; a process that is gone hears nothing."""
        if self._channel is not None and not self._channel.is_closing():
            self._channel.write(encode(message))


class HostedUnit(WorkerEnd):
    """A unit as the worker sees it: what it asks of it, and what it hears.

    Parameters
    ----------
    who
        Names the unit in causes.
    log
        What its host writes goes there.
    listener
        Hears of its events.
    """

    def __init__(self, who: str, log: Path, listener: Callable[[HostEvent], None]) -> None:
        super().__init__(HostMessage)
        self.who = who
        self.log = log
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._begun = self._kill_asked = self._told_end = False
        #: Whether the thread of one that shares its host has ended, or is about to.
        self._left = False
        #: What it waits for outside, as it said last; empty: nothing.
        self.waits_for = ""
        #: The process's number, once it is forked.
        self.forked: asyncio.Future[int] = self._loop.create_future()
        #: What a call came to.
        self.answer: asyncio.Future[PluginAnswer] = self._loop.create_future()
        self._numbers = itertools.count(1)
        #: Questions by their numbers: that of a call, and those for tasks of a connector that runs.
        self._asked = {0: self.answer}
        #: Done when nothing is left of the unit.
        self.gone: asyncio.Future[None] = self._loop.create_future()
        #: Done when it says nothing more.
        self.deaf: asyncio.Future[None] = self._loop.create_future()

    @property
    def pid(self) -> int:
        """Id of the host's process."""
        return self.forked.result()

    # What the worker asks for.

    def begin(self, told: Told) -> None:
        """Send the host what is to run: the first message."""
        self._begun = True
        self.tell(told)

    def ask_stop(self) -> None:
        """Have the host call ``stop()`` once the last ``poll`` or ``put`` is over, and exit."""
        self._told_end = True
        self.tell(Stop())

    def pause(self, *, paused: bool) -> None:
        """Stop polling, or go on; all resources stay."""
        self.tell(Pause(paused))

    def set_level(self, logger: str, level: int) -> None:
        """Set the level of a logger; one that was told nothing yet hears of it then."""
        if self._begun:
            self.tell(Level(logger, level))

    async def task_configs(self) -> PluginAnswer | None:
        """Ask a connector that runs for its tasks; None: it ended before it answered."""
        number = next(self._numbers)
        answer = self._asked[number] = self._loop.create_future()
        try:
            self.tell(AskTasks(number))
            waited: list[asyncio.Future[Any]] = [answer, self.gone]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else None
        finally:
            del self._asked[number]

    async def cancel(self) -> None:
        """Return at once: the data plane ends the queries of its tasks itself."""

    def kill(self) -> None:
        """End the unit, whatever it does, and all that it forked."""
        raise NotImplementedError

    def alive(self) -> bool:
        """Whether anything is left of it: false only when it is proven gone."""
        return not self.gone.done()

    # What the host says.

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is left at the other end, or somebody of another version is, who is ended."""
        if isinstance(exc, ValueError) and not self._told_end:
            self._told_end = True
            why = f"{self.who} is ended, as its host is of another version than the worker: {exc}"
            self._listener(Failed(Cause(why)))
            self.kill()
        if not self.deaf.done():
            self.deaf.set_result(None)

    def _hear(self, message: HostMessage) -> None:
        match message:
            case Born(pid=pid):
                self.forked.set_result(pid)
            case Reply(request=number):
                self._told_end |= not number
                # Nobody may wait for it any more.
                if (asked := self._asked.get(number)) and not asked.done():
                    asked.set_result(PluginAnswer(value=message.value, failure=message.failure))
            case Left():
                self._left = True
            case event:
                self._told_end |= isinstance(event, Failed)
                if isinstance(event, WaitsFor):
                    self.waits_for = event.what
                self._listener(event)

    def _take_leave(self, exited: Exited, failed: Failed | None) -> None:
        """Emit the last event: nothing is left of it."""
        if self._channel is not None:
            self._channel.close()
        if not self.forked.done():
            self.forked.set_result(0)
        if failed is not None:
            self._listener(failed)
        if not self.answer.done():
            self.answer.cancel()
        self.gone.set_result(None)
        self._listener(exited)


class ProcessHost(HostedUnit):
    """A unit that has a host of its own, with its keeper."""

    _keeper: Keeper
    _keepers_socket: socket.socket

    def __init__(self, who: str, log: Path, listener: Callable[[HostEvent], None]) -> None:
        super().__init__(who, log, listener)
        #: What the keeper has said last of all.
        self._last = HostEnded()
        #: Waits for the end of everything, when the fork server cannot tell.
        self.sweep: Callable[[], Awaitable[bool]] | None = None

    def attach(self, keeper: Keeper, keepers_socket: socket.socket) -> None:
        """Take over a keeper that was forked."""
        self._keeper = keeper
        self._keepers_socket = keepers_socket
        self._watch = watched_task(
            self._await_end(), name=f"end of {self.who}", on_failure=self._lose
        )

    @property
    def keeper(self) -> int:
        """Id of the process that keeps it."""
        return self._keeper.pid

    def kill(self) -> None:
        """End the process and all that it forked, by SIGKILL."""
        if self.gone.done() or self._kill_asked:
            return
        self._kill_asked = True
        try:
            self._keepers_socket.send(b"kill")
        except OSError:
            # It ends already, or it was killed itself; the fork server sees to what it left.
            return
        self._loop.call_later(_KEEPERS_PATIENCE, self._kill_keeper)

    def _kill_keeper(self) -> None:
        """Go without a keeper that does not act: the kernel ends the host, its parent the rest."""
        if not self.gone.done() and not self._last.why:
            # A worker that stood still hears late that its keeper has ended.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._keeper.handle, signal.SIGKILL)

    # Its end.

    async def _await_end(self) -> None:
        """Wait until the keeper is gone, by its descriptor, and then for what it left."""
        await self._keeper_gone()
        self._hear_keeper()
        proven = bool(self._last.why) or await self._keeper.all_gone
        while not proven:
            proven = self.sweep is not None and await self.sweep()
            if not proven:
                logger.error("%s cannot be ended: the system does not let go of it", self.who)
                await asyncio.sleep(1.0)
        # What the host said last comes before its end.
        await self.deaf
        self._end()

    def _lose(self, error: BaseException) -> None:
        """Find out in another way that nothing is left, as the watch has ended by an error."""
        if self.gone.done():
            return
        self.kill()
        if not self._told_end:
            self._told_end = True
            cause = Cause(f"{self.who} is ended, as its watch has ended by {error!r}")
            self._listener(Failed(cause))
        self._watch = watched_task(
            self._sweep_up(), name=f"end of {self.who}", on_failure=self._lose
        )

    async def _sweep_up(self) -> None:
        proven = False
        while not proven:
            proven = self.sweep is not None and await self.sweep()
            if not proven:
                await asyncio.sleep(1.0)
        self._end()

    async def _keeper_gone(self) -> None:
        ended = self._loop.create_future()
        handle = self._keeper.handle
        self._loop.add_reader(handle, _set, ended)
        try:
            await ended
        finally:
            self._loop.remove_reader(handle)

    def _hear_keeper(self) -> None:
        with contextlib.suppress(OSError):
            if text := self._keepers_socket.recv(4096):
                self._last = Messages(HostEnded).read(text)

    def _end(self) -> None:
        self._keepers_socket.close()
        os.close(self._keeper.handle)
        status = self._last.status
        expected = self._told_end or self._kill_asked
        failed = None if expected else Failed(self._unasked_end(status))
        self._take_leave(self._exited(status), failed)

    def _exited(self, status: int | None) -> Exited:
        code = None if status is None else os.waitstatus_to_exitcode(status)
        if code is not None and code >= 0:
            return Exited(status=code)
        if code is not None and self._last.why == "exit":
            return Exited(signal=-code)
        # Whoever is ended is asked first where its threads are, and may fall over that.
        return Exited(signal=signal.SIGKILL)

    def _unasked_end(self, status: int | None) -> Cause:
        return Cause(f"{self.who} {self._how(status)}", end_of_log(self.log))

    def _how(self, status: int | None) -> str:
        if self._last.why == "memory":
            used = self._last.used / 1e6
            return (
                f"took {used:,.0f} MB of memory, more than it may: it was killed with all that it"
                " had started"
            )
        if self._last.why == "lease":
            return (
                "was ended with its worker's lease: the worker had not read its log for so long"
                " that others may take its work over"
            )
        if status is None:
            return "was killed together with its keeper"
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return f"ended by itself with status {code}, without stop()"
        return f"was killed by {signal.Signals(-code).name}, not by its worker"


class SharedHost(ProcessHost):
    """A host in which several connectors of one class live, each in a thread of its own.

    Parameters
    ----------
    of
        What its connectors have in common: their class, and what is installed.
    """

    def __init__(self, of: tuple[str, object], log: Path) -> None:
        super().__init__(f"the host that it shares with others of {of[0]}", log, self._heard)
        self.of = of
        #: Done when it takes units in.
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self._door: socket.socket | None = None
        self._units: list[SharedUnit] = []
        self._closing = False
        #: Why it has ended, where nobody wanted that, or for whom it had to.
        self._failed: Failed | None = None
        self._culprit: SharedUnit | None = None

    @property
    def takes(self) -> bool:
        """Whether it takes one more unit in; one that ends does not."""
        return not (self._closing or self._kill_asked or self.gone.done())

    def take(
        self, who: str, listener: Callable[[HostEvent], None]
    ) -> tuple[SharedUnit, socket.socket] | None:
        """Have a unit live in it; give it with the worker's end of its channel, or None."""
        if not self.takes or self._door is None:
            return None
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._door, [b"+"], [theirs.fileno()])
            except OSError:
                ours.close()
                self._closing = True
                return None
        unit = SharedUnit(who, self, listener)
        self._units.append(unit)
        return unit, ours

    def set_level(self, logger: str, level: int) -> None:
        """Set the level of a logger, as any of its units may say."""
        for unit in self._units:
            unit.set_level(logger, level)

    def left(self, unit: SharedUnit) -> None:
        """Let a unit go whose thread has ended; the last one goes with the host itself.

        Caller: SharedUnit.
        """
        if self.gone.done():
            return
        if len(self._units) > 1:
            self._units.remove(unit)
            unit.go()
        else:
            self._closing = True
            self.ask_stop()
            self._loop.call_later(_NEIGHBOURS_PATIENCE, self.kill)

    def end_for(self, unit: SharedUnit) -> None:
        """End with all units, as one of them does not go by itself.

        Caller: SharedUnit.
        """
        if not unit.gone.done():
            self._culprit = self._culprit or unit
            self.kill()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take note that the channel stands; units go through the same socket."""
        super().connection_made(transport)
        self._door = transport.get_extra_info("socket").dup()

    def _heard(self, event: HostEvent) -> None:
        if isinstance(event, Started):
            self.opened.set_result(None)
        elif isinstance(event, Failed):
            self._failed = event
        elif isinstance(event, Exited):
            if self._door is not None:
                self._door.close()
            if not self.opened.done():
                self.opened.set_result(None)
            if self._failed is None and self._culprit is not None:
                why = f"{self.who} was ended, as {self._culprit.who} did not stop"
                self._failed = Failed(Cause(why, end_of_log(self.log)), by_another=True)
            units, self._units = self._units, []
            for unit in units:
                # What it said last comes before its end.
                unit.deaf.add_done_callback(partial(unit.lose, event, self._failed))


class SharedUnit(HostedUnit):
    """A connector in a host that others share.

    It is gone when its thread has ended; where that does not end, the host has to.

    Parameters
    ----------
    shared
        Where it lives.
    """

    def __init__(self, who: str, shared: SharedHost, listener: Callable[[HostEvent], None]) -> None:
        super().__init__(who, shared.log, listener)
        self._shared = shared
        #: How its life has ended, once it has; 1: it failed.
        self._status: int | None = None

    def kill(self) -> None:
        """End it: by itself if it was not asked yet, as others live beside it; else with them."""
        if self.gone.done() or self._kill_asked:
            return
        self._kill_asked = True
        if self._told_end:
            self._shared.end_for(self)
        else:
            self.ask_stop()
            self._loop.call_later(_NEIGHBOURS_PATIENCE, self._shared.end_for, self)

    def go(self) -> None:
        """Emit the last event: it is gone, and its host is not.

        Caller: SharedHost.
        """
        self._take_leave(Exited(status=self._status or 0), None)

    def lose(self, exited: Exited, failed: Failed | None, _: object) -> None:
        """Emit the last event: it is gone with its host.

        Caller: SharedHost.
        """
        if self._left:
            self.go()
        elif failed is None or self._kill_asked or self._status is not None:
            self._take_leave(exited, None)
        else:
            told = Cause(f"{self.who} failed: {failed.cause.summary}", failed.cause.trace)
            self._take_leave(exited, Failed(told, failed.by_another))

    def connection_lost(self, exc: Exception | None) -> None:
        """Its thread has ended, if it has said so; else its host has, which says so itself."""
        super().connection_lost(exc)
        if self._left:
            self._shared.left(self)

    def _hear(self, message: HostMessage) -> None:
        if isinstance(message, Stopped | Failed | StopRaised):
            self._status = int(not isinstance(message, Stopped))
        super()._hear(message)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def end_of_log(path: Path, most: int = 16_000) -> str:
    """Return the last lines that a host wrote to its standard output and error."""
    try:
        with path.open("rb") as log:
            log.seek(0, 2)
            begin = max(0, log.tell() - most)
            log.seek(begin)
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    return text.partition("\n")[2] if begin else text
