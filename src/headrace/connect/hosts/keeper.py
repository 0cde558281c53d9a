"""The keeper of one host: its parent, which ends it, and the heir of all that it leaves behind.

A keeper runs no plugin code and outlives its host.  Whatever the host starts, in whatever session
and by however many forks, descends from the keeper; when the keeper has no child any more, nothing
of the host is left, and the kernel has said so.  It ends everything when the worker says so, when
the worker is gone (the socket to it ends), when the worker's lease is over, when the host ends by
itself, and when the host takes more memory than it may.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import math
import mmap
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NoReturn, Self, TextIO

from headrace.connect.channel import HostEnded, Order, encode
from headrace.connect.hosts.processes import (
    adopt_orphans,
    descendants,
    die_with_parent,
    end_descendants,
    overwrite_mark,
    proportional_bytes,
    resident_bytes,
)
from headrace.leases import boot_time

# Until when hosts may live: one number in memory that a worker shares with all its keepers.

_NUMBER = struct.Struct("d")


class SharedLease:
    """A time after which keepers end their hosts, whatever has become of their worker.

    The worker moves it on while it may run what it runs.  One that was stopped, or that hangs,
    does not, and so what it has started ends all the same.

    Parameters
    ----------
    descriptor
        Of the memory; it is this object's own from then on.

    Examples
    --------
    >>> lease = SharedLease.make()
    >>> lease.left()
    inf
    >>> lease.extend(boot_time() + 60)
    >>> 59 < lease.left() <= 60
    True
    >>> lease.close()
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _NUMBER.size)

    @classmethod
    def make(cls) -> Self:
        """Make one that never ends."""
        descriptor = os.memfd_create("headrace-lease")
        os.ftruncate(descriptor, _NUMBER.size)
        lease = cls(descriptor)
        lease.extend(math.inf)
        return lease

    def extend(self, until: float) -> None:
        """Let hosts live until then, by the clock of `boot_time`."""
        _NUMBER.pack_into(self._memory, 0, until)

    def left(self) -> float:
        """Return the seconds that are left; none where there are none."""
        until: float = _NUMBER.unpack_from(self._memory, 0)[0]
        return max(0.0, until - boot_time())

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()
        os.close(self.descriptor)


# What processes of Connect print and log: in files that do not grow for ever, without secrets.

#: A log is cut when it is longer than the first; the second is what stays of it, bytes.
_MOST, _KEPT = 16 << 20, 1 << 20


def open_log(path: Path) -> BinaryIO:
    """Open a file that a process prints into, behind what it has, of which the end is kept."""
    log = path.open("a+b", buffering=0)
    cut_log(log.fileno())
    return log


def cut_log(log: int) -> None:
    """Cut a file of :func:`open_log` that has grown long to its end, whoever prints meanwhile."""
    # What the disk refuses now it may do at the next look.
    with contextlib.suppress(OSError):
        size = os.fstat(log).st_size
        if size > _MOST:
            end = os.pread(log, _KEPT, size - _KEPT)
            os.ftruncate(log, 0)
            os.write(log, b"... (the beginning was cut)\n" + end)


class MaskedStream(io.TextIOBase):
    r"""Passes whole lines on, each through a mask.

    Parameters
    ----------
    under
        Where they go.
    mask
        Hides what must not be seen.

    Examples
    --------
    >>> under = io.StringIO()
    >>> stream = MaskedStream(under, lambda text: text.replace("swordfish", "***"))
    >>> print("the word is sword", end="", file=stream)
    >>> print("fish", file=stream)
    >>> under.getvalue()
    'the word is ***\n'
    """

    def __init__(self, under: TextIO, mask: Callable[[str], str]) -> None:
        self._under = under
        self._mask = mask
        self._rest = ""
        self._writing = threading.Lock()

    def write(self, text: str) -> int:
        """Pass on what makes whole lines, and keep the rest."""
        with self._writing:
            lines, end, self._rest = (self._rest + text).rpartition("\n")
            if end:
                self._pass_on(lines + end)
        return len(text)

    def flush(self) -> None:
        """Pass on what is there of the last line, too."""
        with self._writing:
            rest, self._rest = self._rest, ""
            self._pass_on(rest)

    def _pass_on(self, text: str) -> None:
        self._under.write(self._mask(text))
        # A host may end at any moment, without a word.
        self._under.flush()

    def writable(self) -> bool:
        """Return that it can be written to."""
        return True

    def fileno(self) -> int:
        """Return the descriptor below, for what is not Python's."""
        return self._under.fileno()


def mask_output(mask: Callable[[str], str]) -> None:
    """Hide what must not be seen in all that this process prints and logs from now on."""
    sys.stdout = MaskedStream(sys.__stdout__ or io.StringIO(), mask)
    sys.stderr = MaskedStream(sys.__stderr__ or io.StringIO(), mask)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)


#: The variable that names a host to whoever looks for what is left of it.
HOST_MARK = "HEADRACE_CONNECT_HOST"
#: Seconds between two looks at the memory: the second where much of it is taken.
_SAMPLE, _SAMPLE_NEAR = 1.0, 0.1
#: What a process may take besides its limit before an allocation is refused: stacks, mostly.
_SLACK = 192 << 20
#: Seconds that a host has to show where its threads are before it is killed.
_LAST_WORDS = 0.05
_PATIENCE = 5.0


def keep(
    order: Order,
    lease: SharedLease,
    worker: socket.socket,
    host: socket.socket,
    log: int,
    run: Callable[..., object],
) -> None:
    """Fork the host, and stay until nothing of it is left.

    Caller: the fork server, in a process made for this.

    Parameters
    ----------
    order
        What the host is like.
    lease
        The worker's.
    worker
        The keeper's own socket to the worker.
    host, log
        The host's socket, and the file that its output goes to.
    run
        What the host does with its socket.
    """
    adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        worker.close()
        _be_host(order, keeper, host, log, run)
    host.close()
    _Keeper(order, lease, worker, pid, log).stay()


def _be_host(
    order: Order, keeper: int, host: socket.socket, log: int, run: Callable[..., object]
) -> NoReturn:
    status = 70
    try:
        # A group of its own, but no session: Linux shares the processor out among sessions, and many
        # busy hosts with one each would leave next to nothing to the engine, which serves them all.
        os.setpgid(0, 0)
        die_with_parent(keeper)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _redirect(log)
        # What C code breaks is shown, too, and whoever is killed says first where its threads are.
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        overwrite_mark(HOST_MARK, order.token)
        _limit(order.memory)
        run(host)
        status = 0
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else 1
    except BaseException:  # noqa: BLE001 - there is nobody above: it goes to the log
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def _redirect(log: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)


def _limit(memory: int | None) -> None:
    # Where a machine runs out of memory, a host goes before the worker does.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    if memory is not None:
        # The keeper looks at real memory every now and then; this refuses what comes faster.
        most = _data_bytes() + memory + _SLACK
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _data_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmData:")[2].split()[0]) * 1024


class _Keeper:
    def __init__(
        self, order: Order, lease: SharedLease, worker: socket.socket, pid: int, log: int
    ) -> None:
        self._lease = lease if order.leased else None
        self._memory = order.memory
        self._worker = worker
        self._host = pid
        self._log = log
        self._handle = os.pidfd_open(pid)
        self._used = 0

    def stay(self) -> None:
        why = self._wait()
        if why != "exit":
            self._ask_for_last_words()
        statuses: dict[int, int] = {}
        while not end_descendants(statuses, _PATIENCE):
            pass  # what waits for a dead disk cannot be killed
        # A worker that is gone hears nothing.
        with contextlib.suppress(OSError):
            ended = HostEnded(statuses.get(self._host), why, self._used)
            self._worker.send(encode(ended))

    def _wait(self) -> str:
        poll = select.poll()
        poll.register(self._worker, select.POLLIN)
        poll.register(self._handle, select.POLLIN)
        pause = _SAMPLE_NEAR
        while True:
            left = pause if self._lease is None else self._lease.left()
            if not left:
                return "lease"
            ready = {number for number, _ in poll.poll(min(pause, left) * 1000)}
            if self._handle in ready:
                return "exit"
            if self._worker.fileno() in ready:
                # Whatever comes is the order to end it; nothing is the end of the worker.
                return "killed" if self._heard() else "orphaned"
            pause = self._sample()
            if self._memory is not None and self._used > self._memory:
                return "memory"

    def _heard(self) -> bytes:
        try:
            return self._worker.recv(64)
        except OSError:
            return b""

    def _sample(self) -> float:
        """Look how much memory is taken; give the seconds until the next look."""
        cut_log(self._log)
        if self._memory is None:
            return _SAMPLE
        pids = descendants(os.getpid())
        self._used = sum(map(resident_bytes, pids))
        if self._used > self._memory:
            # What the host shares with the fork server does not count against it.
            self._used = sum(map(proportional_bytes, pids))
        return _SAMPLE if self._used < self._memory / 2 else _SAMPLE_NEAR

    def _ask_for_last_words(self) -> None:
        """Have the host show where its threads are; the worker quotes it."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGUSR1)
            time.sleep(_LAST_WORDS)
