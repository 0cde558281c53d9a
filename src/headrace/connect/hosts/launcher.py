"""The launcher of a real worker: connectors, tasks and questions are processes."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import logging
import re
import shutil
import socket
import sys
import uuid
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from headrace.connect.channel import Told
from headrace.connect.config.providers import Permits
from headrace.connect.hosts.fork_client import ForkClient
from headrace.connect.hosts.keeper import HOST_MARK, open_log
from headrace.connect.hosts.process_host import HostedUnit, ProcessHost, SharedHost
from headrace.connect.hosts.processes import end_marked, require_linux
from headrace.connect.levels import LevelsToCome
from headrace.connect.lifecycle import Cause, HostEvent
from headrace.connect.plugins.catalog import packages_in
from headrace.connect.worker.launching import HostSpec, Listener, PluginAnswer, PluginCall
from headrace.errors import ConnectionFailedError, HeadraceError, StoreLockedError
from headrace.private import owners_folder

# List plugins of which one cannot even be imported: each in a process of its own.

#: Processes at a time.
_SIDE_BY_SIDE = 4

Ask = Callable[[Told], Awaitable[PluginAnswer]]
"""Asks a question in a process of its own."""


async def list_one_by_one(told: Told, ask: Ask) -> PluginAnswer:
    """Import each plugin alone; one that kills its process is listed as broken.

    Parameters
    ----------
    told
        The question for all plugins.
    ask
        Asks others like it.
    """
    names = await ask(msgspec.structs.replace(told, what="plugin_names"))
    if names.failure is not None:
        return names
    free = asyncio.Semaphore(_SIDE_BY_SIDE)

    async def entries(name: dict[str, Any]) -> list[dict[str, Any]]:
        async with free:
            alone = msgspec.structs.replace(told, arguments={"only": name["target"]})
            answer = await ask(alone)
        if answer.failure is None:
            found: list[dict[str, Any]] = answer.value
            return found
        return [{**name["entry"], "error": answer.failure.summary}]

    found = await asyncio.gather(*map(entries, names.value))
    return PluginAnswer(value=[entry for one in found for entry in one])


logger = logging.getLogger(__name__)

#: The variable that names the folder of a worker to whoever looks for what it left.
FOLDER_MARK = "HEADRACE_CONNECT_RUN"

#: Hosts to share that may end before a unit has come in.
_TRIES = 3

Positions = Sequence[tuple[dict[str, Any], dict[str, Any]]]
"""Where a source stands: partition and offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """What all hosts of a worker have in common."""

    #: Seconds that a question to a plugin may take, and how many are answered at a time.
    call_timeout: float = 30.0
    calls_at_once: int = 16
    #: Seconds between two health probes; 0: none.
    probe_interval: float = 10.0
    #: Seconds between two looks at values that configs take from outside; 0: none.
    outside_interval: float = 10.0
    #: Most records and bytes that a source task is polled ahead.
    ahead_records: int = 50_000
    ahead_bytes: int = 16 << 20
    #: Folders that plugins are imported from, before all others.
    folders: tuple[str, ...] = ()
    #: Modules with plugins that no entry point names.
    modules: tuple[str, ...] = ()
    #: What configs may take from outside; default: nothing.
    permits: Permits = field(default_factory=Permits)
    #: Whether all plugins that come with Headrace are imported once, before any host is made: it
    #: takes a second, and each host less time and memory.
    warm: bool = False


@dataclass(frozen=True, slots=True)
class LauncherStatistics:
    """What a launcher has going on."""

    #: Hosts, those of questions included, of which something is left.
    hosts: int


class ProcessLauncher:
    """Starts hosts as processes.

    Parameters
    ----------
    folder
        The worker's own: sockets and logs are there, and no other worker uses it meanwhile.
    settings
        What all hosts have in common.
    positions
        Gives the committed positions of a source connector when its host is started; its tasks
        hear of theirs from the data plane.
    """

    def __init__(
        self,
        folder: Path,
        settings: HostSettings | None = None,
        *,
        positions: Callable[[str], Awaitable[Positions]] | None = None,
    ) -> None:
        require_linux()
        self._folder = folder.absolute()
        self._settings = settings or HostSettings()
        self._positions = positions
        self._lock: IO[bytes] | None = None
        self._forks = ForkClient(
            self._folder / "fork-server.log",
            {FOLDER_MARK: str(self._folder.resolve())},
            warm=self._settings.warm,
        )
        self._calls = asyncio.Semaphore(self._settings.calls_at_once)
        #: All hosts of which something is left.
        self._hosts: set[ProcessHost] = set()
        #: The host that connectors of a class share, the last one of each class.
        self._shared: dict[str, SharedHost] = {}
        self._sharing = asyncio.Lock()
        self._shared_numbers = itertools.count(1)
        #: Logs of shared hosts, with the connectors that have written there.
        self._writers: dict[Path, set[str]] = {}
        self._levels = LevelsToCome()

    def use_positions(self, positions: Callable[[str], Awaitable[Positions]]) -> None:
        """Ask somebody else for the committed positions of source connectors."""
        self._positions = positions

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> int:
        """Take the folder, and end what a worker that died has left; give the number of those.

        Raises
        ------
        StoreLockedError
            Another worker uses the folder.
        """
        if self._lock is not None:
            return 0
        owners_folder(self._folder)
        self._lock = _locked(self._folder)
        ended, left = await asyncio.to_thread(end_marked, self._mark)
        if ended:
            logger.warning("ended %d processes that an earlier worker had left", ended)
        if left:
            logger.error("processes that an earlier worker left do not end: %s", left)
        for name in ("data", "logs"):
            shutil.rmtree(self._folder / name, ignore_errors=True)
            (self._folder / name).mkdir(mode=0o700)
        if self._settings.warm:
            self._forks.begin()
        return ended

    @property
    def _mark(self) -> str:
        return f"{FOLDER_MARK}={self._folder.resolve()}"

    async def launch(self, spec: HostSpec, listener: Listener) -> HostedUnit:
        """Start a host; return when its process is there, before it has run any user code.

        A connector that shares its host with others may find that there already.
        """
        await self.open()
        told = self._told(spec, await self._committed(spec))
        if spec.shares:
            return await self._lodged(told, spec, listener)
        host = ProcessHost(told.who, self._log_of(told), listener)
        await self._born(told, host, spec.memory_mb)
        return host

    async def _lodged(self, told: Told, spec: HostSpec, listener: Listener) -> HostedUnit:
        """Have a unit live in the host that it shares."""
        for _ in range(_TRIES):
            shared = await self._shared_host(spec)
            # It may have ended since.
            if (taken := shared.take(told.who, listener)) is not None:
                unit, channel = taken
                self._writers.setdefault(shared.log, set()).add(spec.connector)
                await self._connect(unit, channel, told)
                return unit
        raise ConnectionFailedError(f"a host for connectors of {spec.shares} ended before it began")

    async def _shared_host(self, spec: HostSpec) -> SharedHost:
        """Return the host that a unit shares.

        A new one where it ends, or lacks what is installed.
        """
        of = spec.shares, self.installed()
        async with self._sharing:
            shared = self._shared.get(spec.shares)
            if shared is not None and shared.takes and shared.of == of:
                return shared
            told = Told(
                kind="shared",
                connector=spec.shares,
                generation=next(self._shared_numbers),
                folders=list(self._settings.folders),
                permits=self._settings.permits,
            )
            shared = SharedHost(of, self._log_of(told))
            await self._born(told, shared, spec.memory_mb)
            try:
                await shared.opened
            except BaseException:
                shared.kill()
                raise
            self._shared[spec.shares] = shared
            return shared

    def _log_of(self, told: Told) -> Path:
        """Name the file of a host's output; those of its older generations go, but the last."""
        folder, name = self._folder / "logs", _file_name(told.connector, told.kind, told.task)
        older = [one for one in folder.glob(f"{name}.*.log") if _generation(one) < told.generation]
        for log in sorted(older, key=_generation)[:-1]:
            self._drop_log(log)
        return folder / f"{name}.{told.generation}.log"

    async def _committed(self, spec: HostSpec) -> Positions:
        if self._positions is None or spec.role != "source" or spec.kind == "task":
            return ()
        return await self._positions(spec.kept_as or spec.connector)

    def _told(self, spec: HostSpec, positions: Positions) -> Told:
        name = f"{uuid.uuid4().hex[:16]}.sock"
        return Told(
            kind=spec.kind,
            connector=spec.connector,
            task=spec.task or 0,
            generation=spec.generation,
            role=spec.role,
            config={"name": spec.connector, **spec.config},
            paused=spec.paused,
            address=str(self._folder / "data" / name) if spec.kind == "task" else "",
            positions=list(positions),
            probe=self._settings.probe_interval,
            outside=self._settings.outside_interval,
            ahead_records=self._settings.ahead_records,
            ahead_bytes=self._settings.ahead_bytes,
            folders=list(self._settings.folders),
            modules=list(self._settings.modules),
            permits=self._settings.permits,
        )

    async def _born(self, told: Told, host: ProcessHost, memory_mb: int | None = None) -> None:
        """Have a host's process made, and tell it what is to run."""
        token = uuid.uuid4().hex
        ours, theirs = socket.socketpair()
        keepers, keeper = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        keepers.settimeout(0)
        host.sweep = lambda: self._sweep(token)
        with theirs, keeper, open_log(host.log) as output:
            descriptors = [keeper.fileno(), theirs.fileno(), output.fileno()]
            memory = None if memory_mb is None else memory_mb * 1_000_000
            try:
                leased = told.kind != "call"
                forked = await self._forks.fork(token, memory, descriptors, leased=leased)
            except BaseException:
                ours.close()
                keepers.close()
                raise
        host.attach(forked, keepers)
        self._hosts.add(host)
        host.gone.add_done_callback(lambda _: self._hosts.discard(host))
        await self._connect(host, ours, told)

    async def _connect(self, unit: HostedUnit, channel: socket.socket, told: Told) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: unit, sock=channel)
            unit.begin(msgspec.structs.replace(told, levels=self._levels.in_order()))
            await unit.forked
        except BaseException:
            # Nobody will ever know of it.
            unit.kill()
            raise

    async def _sweep(self, token: str) -> bool:
        """End what is left of a host whose keeper and whose fork server were killed."""
        _, left = await asyncio.to_thread(end_marked, f"{HOST_MARK}={token}")
        return not left

    def set_level(self, logger: str, level: int) -> None:
        """Set the level of a logger, and of those below it, in all hosts and in those to come."""
        self._levels.set(logger, level)
        for host in self._hosts:
            host.set_level(logger, level)

    async def forget(self, kept_as: str, config: Mapping[str, str]) -> None:
        """Do nothing: positions are the data plane's."""

    def drop_logs(self, connector: str) -> None:
        """Remove what the hosts of a connector have written, but for those that live."""
        for kind, task in (("connector", 0), ("task", "*")):
            for log in (self._folder / "logs").glob(f"{_file_name(connector, kind, task)}.*.log"):
                self._drop_log(log)
        for log, writers in list(self._writers.items()):
            writers.discard(connector)
            if not writers:
                self._drop_log(log)

    def _drop_log(self, log: Path) -> None:
        if log not in {host.log for host in self._hosts}:
            log.unlink(missing_ok=True)
            self._writers.pop(log, None)

    def installed(self) -> object:
        """Return which packages there are on the path, and in the folders of plugins."""
        return tuple(map(packages_in, (*sys.path, *self._settings.folders)))

    def live_until(self, time: float) -> None:
        """End all hosts at that time, unless a later one is told before."""
        self._forks.live_until(time)

    async def call(self, call: PluginCall) -> PluginAnswer:
        """Answer a question in a process of its own, within a hard time limit; never raise."""
        told = Told(
            kind="call",
            connector=call.config.get("name", ""),
            config=dict(call.config),
            folders=list(self._settings.folders),
            modules=list(self._settings.modules),
            permits=self._settings.permits,
            what=call.what,
            connector_class=call.connector_class,
            arguments=dict(call.arguments),
        )
        answer = await self._ask(told)
        if call.what == "plugins" and answer.failure is not None:
            # One of them kills or holds up whoever imports it: the others are listed without it.
            return await list_one_by_one(told, self._ask)
        return answer

    async def _ask(self, told: Told) -> PluginAnswer:
        log = self._folder / "logs" / f"call-{uuid.uuid4().hex}.log"
        causes: list[Cause] = []
        try:
            await self.open()
            async with self._calls:
                host = ProcessHost(told.who, log, _gathering(causes))
                await self._born(told, host)
                return await self._answered(host, told, causes)
        except (OSError, HeadraceError) as error:
            return PluginAnswer(failure=Cause(f"no process could be started: {error}"))
        finally:
            log.unlink(missing_ok=True)

    async def _answered(self, host: ProcessHost, told: Told, causes: list[Cause]) -> PluginAnswer:
        limit = self._settings.call_timeout
        done, _ = await asyncio.wait([host.answer], timeout=limit)
        try:
            if not done:
                why = (
                    f"{told.who} took more than {limit:g} s to answer {told.what!r}: it was killed"
                )
                return PluginAnswer(failure=Cause(why), timed_out=True)
            if host.answer.cancelled():
                await host.gone
                return PluginAnswer(failure=causes[0] if causes else Cause(f"{told.who} ended"))
            return host.answer.result()
        finally:
            host.kill()

    def statistics(self) -> LauncherStatistics:
        """Return what is going on."""
        return LauncherStatistics(hosts=sum(host.alive() for host in self._hosts))

    async def close(self) -> None:
        """Kill what still runs, prove that it is gone, and end."""
        for host in list(self._hosts):
            host.kill()
        if self._hosts:
            await asyncio.wait([host.gone for host in self._hosts])
        await self._forks.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _gathering(causes: list[Cause]) -> Listener:
    def hear(event: HostEvent) -> None:
        if cause := getattr(event, "cause", None):
            causes.append(cause)

    return hear


def _file_name(connector: str, kind: str, task: int | str) -> str:
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", connector)[:80]
    if safe != connector:
        # Two names may look the same now.
        safe += f"-{zlib.crc32(connector.encode()):08x}"
    return f"{safe}.task-{task}" if kind == "task" else f"{safe}.{kind}"


def _generation(log: Path) -> int:
    number = log.stem.rpartition(".")[2]
    return int(number) if number.isdecimal() else 0


def _locked(folder: Path) -> IO[bytes]:
    lock = (folder / "lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise StoreLockedError(
            f"another Connect worker uses the folder {folder}",
            hint="stop it first, or give this one a folder of its own",
        ) from None
    return lock
