"""A launcher without processes: hosts are coroutines that behave as their config says.

Of a chaos connector, ``chaos.start``, ``chaos.stop`` and ``chaos.run`` say what its tasks do, and
``chaos.connector.start``, ``chaos.connector.stop``, ``chaos.connector.run`` what it does itself:
``hang``, ``raise``, ``exit`` (the process dies), or ``slow:SECONDS``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from headrace.connect.worker import (
    Cause,
    Exited,
    Failed,
    HostEvent,
    HostSpec,
    Listener,
    OffsetEntry,
    PluginAnswer,
    PluginCall,
    Started,
    Stopped,
    StopRaised,
)
from headrace.errors import HeadraceError
from tests.connect.fakes import plugins
from tests.connect.fakes.behaviours import Behaviour, ChaosError, behaviour_of

__all__ = ["FakeHost", "FakeLauncher", "FakePositions", "positions_of_fakes"]

_pids = itertools.count(900_001)


class FakePositions:
    """Positions of connectors, and what lies in topics."""

    def __init__(self) -> None:
        self.by_connector: dict[str, list[OffsetEntry]] = defaultdict(list)
        self.topics: dict[str, list[str]] = defaultdict(list)
        self.dead_letters: dict[str, list[str]] = defaultdict(list)

    def get(self, connector: str, partition: Mapping[str, Any]) -> dict[str, Any] | None:
        for one in self.by_connector[connector]:
            if one.partition == dict(partition):
                return one.offset
        return None

    def set(
        self, connector: str, partition: Mapping[str, Any], offset: dict[str, Any] | None
    ) -> None:
        kept = [one for one in self.by_connector[connector] if one.partition != dict(partition)]
        if offset is not None:
            kept.append(OffsetEntry(dict(partition), offset))
        self.by_connector[connector] = kept

    async def read(self, connector: str, config: Mapping[str, str]) -> list[OffsetEntry]:
        return list(self.by_connector[connector])

    async def alter(self, connector: str, config: Mapping[str, str], entries: Any) -> None:
        for one in entries:
            self.set(connector, one.partition, one.offset)

    async def reset(self, connector: str, config: Mapping[str, str]) -> None:
        self.by_connector[connector] = []


class FakeHost:
    """A host that is a coroutine; ``kill`` ends it after the time that ``dying`` says."""

    def __init__(self, spec: HostSpec, listener: Listener, launcher: FakeLauncher) -> None:
        self.spec = spec
        self.pid = next(_pids)
        self.paused = spec.paused
        self.stopping = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.kills = 0
        self.waits_for = ""
        #: What its user code was asked to do, in order.
        self.story: list[str] = []
        self._listener = listener
        self._launcher = launcher
        self._behaviour = behaviour_of(spec)
        self._over = False
        self._ended = asyncio.Event()
        self._life = asyncio.create_task(self._live())

    def ask_stop(self) -> None:
        self.story.append("asked")
        self.stopping.set()

    def pause(self, *, paused: bool) -> None:
        self.story.append("paused" if paused else "resumed")
        self.paused = paused

    async def task_configs(self) -> PluginAnswer | None:
        self.story.append("task_configs")
        word = self.spec.config.get("chaos.task_configs", "")
        if word == "hang":
            await self._ended.wait()
            return None
        await asyncio.sleep(0)
        if self._over:
            return None
        if word == "raise":
            return PluginAnswer(failure=Cause("ChaosError: task_configs was told to raise"))
        if word == "junk":
            return PluginAnswer(value={"not": ["what", "was", "asked"]})
        return PluginAnswer(value=self._launcher.tasks_told(self.spec))

    async def cancel(self) -> None:
        self.story.append("cancelled")
        self.cancelled.set()

    def kill(self) -> None:
        self.kills += 1
        if self.kills == 1:
            dying = float(self.spec.config.get("chaos.dying", "0"))
            asyncio.get_running_loop().call_later(dying, self._die, None, 9)

    def alive(self) -> bool:
        return not self._over

    def tell(self, event: HostEvent) -> None:
        """Say something as the host."""
        if not self._over:
            self._listener(event)

    def die(self, status: int) -> None:
        """End as a process does that exits by itself."""
        self._die(status, None)

    async def _live(self) -> None:
        behaviour = self._behaviour
        try:
            await self._call("start", behaviour)
            self.tell(Started(f"/fake/{self.pid}"))
            await self._run(behaviour)
        except ChaosError as error:
            self.tell(Failed(_cause(self.spec, error)))
            self._die(1, None)
            return
        except _Gone as gone:
            self._die(gone.status, None)
            return
        try:
            await self._call("stop", behaviour)
        except ChaosError as error:
            self.tell(StopRaised(_cause(self.spec, error)))
            self._die(1, None)
        except _Gone as gone:
            self._die(gone.status, None)
        else:
            self.tell(Stopped())
            self._die(0, None)

    async def _call(self, what: str, behaviour: Behaviour) -> None:
        self.story.append(what)
        await self._act(behaviour.says(what), what)
        if what == "start":
            behaviour.start(self, self._launcher.positions)

    async def _act(self, word: str, what: str) -> None:
        if word == "hang":
            await asyncio.Event().wait()
        elif word == "raise":
            raise ChaosError(f"{what}() was told to raise")
        elif word == "exit":
            raise _Gone(3)
        elif word.startswith("slow:"):
            await asyncio.sleep(float(word.partition(":")[2]))

    async def _run(self, behaviour: Behaviour) -> None:
        await self._act(behaviour.says("run"), "run")
        if behaviour.idle:
            await self.stopping.wait()
        while not self.stopping.is_set():
            if not self.paused:
                behaviour.step(self, self._launcher.positions)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), 0.02)

    def _die(self, status: int | None, signal: int | None) -> None:
        if self._over:
            return
        self._over = True
        self._ended.set()
        if self._life is not asyncio.current_task():
            self._life.cancel()
        self._launcher.gone(self)
        self._listener(Exited(status, signal))


class _Gone(Exception):  # noqa: N818 - a process that ends is no error here
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class FakeLauncher:
    """Launches fake hosts, and plays the answers of plugins."""

    def __init__(
        self, *, call_timeout: float = 0.3, fakes: tuple[plugins.FakePlugin, ...] = plugins.FAKES
    ) -> None:
        self.positions = FakePositions()
        self.fakes = fakes
        #: Plugins that no package announces.
        self.unlisted: tuple[plugins.FakePlugin, ...] = ()
        #: What is installed.
        self.packages = 0
        self.call_timeout = call_timeout
        #: Every host that ever was.
        self.hosts: list[FakeHost] = []
        self.calls: list[PluginCall] = []
        #: How many copies of a unit were alive at once, at most.
        self.most_alive = 0
        #: Numbers of tasks that connectors answer, whatever their config says.
        self.tasks_of: dict[str, int] = {}
        #: Makes a launch fail, when it returns a text.
        self.refuse: Callable[[HostSpec], str | None] = lambda spec: None
        #: Names under which positions were to be forgotten, and what hinders that.
        self.forgotten: list[str] = []
        self.refuse_to_forget: Callable[[str], HeadraceError | None] = lambda kept_as: None
        #: Connectors of which the logs were dropped.
        self.logs_dropped: list[str] = []
        self.closed = False
        #: Levels of loggers for the processes of plugins.
        self.levels: list[tuple[str, int]] = []
        #: When the worker's lease is over.
        self.until = math.inf

    async def launch(self, spec: HostSpec, listener: Listener) -> FakeHost:
        await asyncio.sleep(0)
        if refusal := self.refuse(spec):
            raise HeadraceError(refusal)
        host = FakeHost(spec, listener, self)
        self.hosts.append(host)
        self.most_alive = max(self.most_alive, len(self.alive(spec.connector, spec.task)))
        return host

    async def call(self, call: PluginCall) -> PluginAnswer:
        self.calls.append(call)
        try:
            return await asyncio.wait_for(self._answer(call), self.call_timeout)
        except TimeoutError:
            cause = Cause(f"{call.what} took longer than {self.call_timeout} s")
            return PluginAnswer(failure=cause, timed_out=True)

    async def forget(self, kept_as: str, config: Mapping[str, str]) -> None:
        self.forgotten.append(kept_as)
        if failure := self.refuse_to_forget(kept_as):
            raise failure
        self.positions.by_connector.pop(kept_as, None)

    def drop_logs(self, connector: str) -> None:
        self.logs_dropped.append(connector)

    def set_level(self, logger: str, level: int) -> None:
        self.levels.append((logger, level))

    def installed(self) -> object:
        return self.packages

    def live_until(self, time: float) -> None:
        self.until = time

    async def close(self) -> None:
        self.closed = True
        for host in self.hosts:
            host.kill()

    def alive(self, connector: str, task: int | None) -> list[FakeHost]:
        """Hosts of a unit that live."""
        return [
            host
            for host in self.hosts
            if host.alive() and (host.spec.connector, host.spec.task) == (connector, task)
        ]

    def of(self, connector: str, task: int | None) -> list[FakeHost]:
        """All hosts that a unit ever had, in order."""
        return [
            host
            for host in self.hosts
            if (host.spec.connector, host.spec.task) == (connector, task)
        ]

    def asked(self, what: str, name: str | None = None) -> int:
        """How often something was asked of plugins, about one connector or all."""
        if what == "task_configs":
            mine = [host for host in self.hosts if name in {None, host.spec.connector}]
            return sum(host.story.count(what) for host in mine)
        return sum(
            call.what == what and name in {None, call.config.get("name")} for call in self.calls
        )

    def gone(self, host: FakeHost) -> None:
        """Note the end of a host."""

    async def _answer(self, call: PluginCall) -> PluginAnswer:
        await asyncio.sleep(0)
        if call.what == "plugins":
            only = call.arguments.get("only")
            found = self.fakes if only is None else self.unlisted
            return PluginAnswer(
                value=[one.listed() for one in found if only in {None, one.class_name}]
            )
        word = call.config.get(f"chaos.{call.what}", "")
        if word == "hang":
            await asyncio.Event().wait()
        if word == "raise":
            return PluginAnswer(failure=Cause(f"ChaosError: {call.what} was told to raise"))
        if word == "junk":
            return PluginAnswer(value={"not": ["what", "was", "asked"]})
        plugin = plugins.named(call.connector_class, (*self.fakes, *self.unlisted))
        if call.what == "describe":
            return PluginAnswer(value=plugin.described())
        if call.what == "validate":
            return PluginAnswer(value=plugin.validated(call.config))
        assert call.what == "alter_offsets"
        return PluginAnswer(value=True)

    def tasks_told(self, spec: HostSpec) -> list[dict[str, str]]:
        """What a connector says that its tasks are to do."""
        name = spec.config["connector.class"]
        plugin = next(one for one in self.fakes if name in {one.class_name, *one.aliases})
        most = 1 if plugin.single else int(spec.config.get("tasks.max", "1"))
        count = self.tasks_of.get(spec.connector, most)
        return [{"task.share": f"{n}/{count}"} for n in range(count)]


def positions_of_fakes(launcher: Any) -> Any:
    """Give the positions that a fake launcher keeps."""
    return launcher.positions


def _cause(spec: HostSpec, error: ChaosError) -> Cause:
    what = spec.connector if spec.task is None else f"{spec.connector}-{spec.task}"
    text = f"{type(error).__name__}: {error}"
    return Cause(f"{what} failed: {text}", f"Traceback ...\n{text}")
