"""The worker's side of a fork server: start it, and ask it for hosts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.connect.channel import Forked, KeeperEnded, Messages, Order, encode
from headrace.connect.hosts.keeper import HOST_MARK, SharedLease, open_log
from headrace.errors import ConnectionFailedError

logger = logging.getLogger(__name__)

#: Seconds that a fork server has to end when the worker lets go of it.
_PATIENCE = 10.0
#: Forks at a time.
_SIDE_BY_SIDE = 32


@dataclass(frozen=True, slots=True)
class Keeper:
    """A keeper that was forked."""

    pid: int
    #: Descriptor of its process: readable when it has ended.
    handle: int
    #: What the fork server says after it: whether all that it left is gone as well.
    all_gone: asyncio.Future[bool]


class ForkClient:
    """Starts a fork server when one is needed, and another when that dies.

    Parameters
    ----------
    log
        File of the fork server's output.
    marks
        Variables by which whoever cleans up recognizes everything that descends from it.
    warm
        Whether it imports all plugins that come with Headrace before it forks.
    """

    def __init__(self, log: Path, marks: Mapping[str, str], *, warm: bool = False) -> None:
        self._log = log
        self._marks = marks
        self._warm = ["warm"] if warm else []
        self._lease: SharedLease | None = None
        self._until = math.inf
        self._numbers = itertools.count(1)
        # More orders than these might not fit into the socket.
        self._side_by_side = asyncio.Semaphore(_SIDE_BY_SIDE)
        self._process: subprocess.Popen[bytes] | None = None
        #: Those that nobody has taken leave of yet.
        self._ended: list[subprocess.Popen[bytes]] = []
        self._socket: socket.socket | None = None
        self._messages = Messages(Forked | KeeperEnded)
        self._asked: dict[int, asyncio.Future[tuple[int, int]]] = {}
        self._all_gone: dict[int, asyncio.Future[bool]] = {}

    def begin(self) -> None:
        """Start the fork server now: whoever needs the first host does not wait for it."""
        self._running()

    def live_until(self, time: float) -> None:
        """End all leased hosts at that time, unless a later one is told before."""
        self._until = time
        if self._lease is not None:
            self._lease.extend(time)

    async def fork(
        self, token: str, memory: int | None, descriptors: list[int], *, leased: bool
    ) -> Keeper:
        """Have a host and its keeper made, with these sockets and this log.

        Raises
        ------
        ConnectionFailedError
            The fork server died over it.
        """
        order = Order(next(self._numbers), token, memory, leased)
        async with self._side_by_side:
            return await self._made(order, descriptors)

    async def _made(self, order: Order, descriptors: list[int]) -> Keeper:
        try:
            self._send(order, descriptors)
        except OSError:
            # It died unseen, and has made nothing of the order: another one may have it.
            self._lost()
            self._send(order, descriptors)
        loop = asyncio.get_running_loop()
        forked = self._asked[order.number] = loop.create_future()
        all_gone = self._all_gone[order.number] = loop.create_future()
        pid, handle = await forked
        return Keeper(pid, handle, all_gone)

    def _send(self, order: Order, descriptors: list[int]) -> None:
        socket.send_fds(self._running(), [encode(order)], descriptors)

    def _running(self) -> socket.socket:
        if self._socket is None:
            self._socket = self._start()
            self._socket.settimeout(0)
            asyncio.get_running_loop().add_reader(self._socket, self._hear)
        return self._socket

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if self._lease is None:
            self._lease = SharedLease.make()
            self._lease.extend(self._until)
        passed = [theirs.fileno(), self._lease.descriptor]
        with theirs, open_log(self._log) as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "headrace.connect.hosts.fork_server"),
                    *(*map(str, passed), *self._warm),
                ],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=passed,
                start_new_session=True,
            )
        return ours

    def _environment(self) -> dict[str, str]:
        environment = {
            **os.environ,
            # A fork copies no thread, so the fork server has none: those of Arrow and of NumPy's
            # algebra would begin when they are imported.
            "OPENBLAS_NUM_THREADS": "1",
            "JE_ARROW_MALLOC_CONF": "background_thread:false",
            # The others reserve a GiB at once, which a limit of memory would have to allow.
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            **self._marks,
        }
        return {**environment, HOST_MARK: "-" * 32}

    def _hear(self) -> None:
        """Take a message of the fork server, or notice that there is none any more."""
        assert self._socket is not None
        try:
            text, handles, _, _ = socket.recv_fds(self._socket, 4096, 1)
        except BlockingIOError:
            return
        except OSError:
            text, handles = b"", []
        if not text:
            self._lost()
            return
        match self._messages.read(text):
            case Forked(number=number, keeper=pid):
                forked = self._asked.pop(number)
                if forked.cancelled():
                    # Nobody waits for it any more; the keeper has lost its socket, and ends.
                    os.close(handles[0])
                else:
                    forked.set_result((pid, handles[0]))
            case KeeperEnded(number=number, clean=clean) if number in self._all_gone:
                self._all_gone.pop(number).set_result(clean)

    def _lost(self) -> None:
        """Forget a fork server that died; its keepers go on by themselves."""
        if self._socket is None:
            return
        logger.error("the fork server of plugin processes died; a new one is started when needed")
        self._forget()
        error = ConnectionFailedError("the fork server of plugin processes died")
        for forked in self._asked.values():
            if not forked.done():
                forked.set_exception(error)
        for all_gone in self._all_gone.values():
            all_gone.set_result(False)
        self._asked.clear()
        self._all_gone.clear()

    def _forget(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._process is not None:
            # Its socket ends a moment before it does: whoever closes waits for it.
            self._ended.append(self._process)
            self._process = None

    async def close(self) -> None:
        """Let go of the fork server, and wait until it has ended."""
        self._forget()
        while self._ended:
            process = self._ended.pop()
            try:
                await asyncio.to_thread(process.wait, _PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)
        if self._lease is not None:
            self._lease.close()
            self._lease = None
