"""The parent of the Python processes that tests start: it has imported what they need, and forks.

A Python that imports Headrace, Arrow and Spark's worker takes a second of a core; a fork of one
that has done so takes ten milliseconds.  Asked over a Unix socket, with descriptors, the server
makes a child that becomes ``python ARGUMENTS`` as if it had been started so: with the arguments,
environment, folder, streams and command line that were asked for, also where ``/proc`` shows them.
It ends when its standard input does.

A child is one of the process that started the server, as if that had started it itself; only where
Java asks, which cannot wait for what it has not started, it is the server's own.  What a child has
that a process of its own has not: modules that are imported already, and the hash seed of all.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import struct
import sys
import threading
import warnings
from dataclasses import dataclass, field
from pathlib import Path

_MODULES = (
    "pyspark.daemon",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.create_data_source",
    "headrace.broker.embedded",
    "headrace.cli.app",
    "headrace.connect.data.engine",
    "headrace.connect.hosts.host",
    "headrace.connect.hosts.fork_server",
    "headrace.connect.rest",
    "headrace.connect.worker",
    "headrace.spark.job",
    "headrace.spark.session",
    "headrace.streams",
    "headrace.transactions",
    "rich.console",
    "rich.progress",
)
_NUMBER = struct.Struct("=i")
_MAXIMUM = 1 << 18
_DESCRIPTORS = 64
_CLONE = 56
_CLONE_PARENT = 0x8000
#: Of what the C library keeps of a thread its first part, which has the thread's id.
_THREAD_SIZE = 1024


@dataclass(frozen=True, slots=True)
class Order:
    """What a child is to become."""

    #: The program, then its options and arguments.
    command: list[str]
    environment: dict[str, str]
    folder: str
    #: Whether it leads a session of its own.
    session: bool
    #: The group of processes that it joins; 0: one of its own, -1: that of the server.
    group: int
    #: Whether it is the server's child, and dies with the one who asked.
    bound: bool
    #: What number each of its descriptors has in the child: 0, 1, 2, then others.
    numbers: list[int]
    descriptors: list[int]


@dataclass(slots=True)
class _Server:
    listener: socket.socket
    selector: selectors.DefaultSelector = field(default_factory=selectors.DefaultSelector)
    #: Who is told of the end of each child that is bound.
    bound: dict[int, socket.socket] = field(default_factory=dict)

    def serve(self) -> Order | None:
        """Fork until standard input ends; return in each child what it is to become."""
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for source in (0, woken, self.listener):
            self.selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select():
                if key.fileobj == 0:
                    if not os.read(0, 1):
                        return None
                elif key.fileobj == woken:
                    os.read(woken, 4096)
                    self._reap()
                elif key.fileobj is self.listener:
                    channel, _ = self.listener.accept()
                    self.selector.register(channel, selectors.EVENT_READ)
                elif (order := self._hear(key.fileobj)) is not None:  # type: ignore[arg-type]
                    self._leave(wake, woken)
                    return order

    def _hear(self, channel: socket.socket) -> Order | None:
        if (order := _receive(channel)) is None:
            self._forget(channel)
            return None
        pid = os.fork() if order.bound else _fork_sibling()
        if not pid:
            return order
        for descriptor in order.descriptors:
            os.close(descriptor)
        if order.bound:
            self.bound[pid] = channel
        channel.send(_NUMBER.pack(pid))
        return None

    def _forget(self, channel: socket.socket) -> None:
        """The one who asked has gone, or knows all that it wants to know."""
        self.selector.unregister(channel)
        channel.close()
        for pid in [pid for pid, one in self.bound.items() if one is channel]:
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while self.bound:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            with contextlib.suppress(OSError):
                self.bound.pop(pid).send(_NUMBER.pack(status))

    def _leave(self, *descriptors: int) -> None:
        """In a child: let go of what is the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in descriptors:
            os.close(descriptor)
        for key in list(self.selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self.selector.close()


def _receive(channel: socket.socket) -> Order | None:
    descriptors = array.array("i")
    try:
        room = socket.CMSG_LEN(_DESCRIPTORS * descriptors.itemsize)
        text, extra, _, _ = channel.recvmsg(_MAXIMUM, room, socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return None
    for _, _, content in extra:
        descriptors.frombytes(content)
    return Order(**json.loads(text), descriptors=list(descriptors)) if text else None


def _fork_sibling() -> int:
    """Fork a child of this process's parent.

    The C library has no call for that, so what its ``fork`` does besides is done here: nothing but
    to note the thread's new id, as this process has one thread.
    """
    python, libc = ctypes.pythonapi, ctypes.PyDLL(None)
    libc.syscall.restype = ctypes.c_long
    libc.pthread_self.restype = ctypes.c_void_p
    thread = libc.pthread_self()
    own = _NUMBER.pack(threading.get_native_id())
    noted = ctypes.string_at(thread, _THREAD_SIZE).find(own)
    python.PyOS_BeforeFork()
    pid: int = libc.syscall(_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid:
        python.PyOS_AfterFork_Parent()
        return pid
    if noted >= 0:
        ctypes.memmove(thread + noted, _NUMBER.pack(os.getpid()), _NUMBER.size)
    python.PyOS_AfterFork_Child()
    return 0


def _become(order: Order) -> None:
    """Turn this process into the one that was ordered, and run it to its end."""
    _place(dict(zip(order.numbers, order.descriptors, strict=True)))
    os.chdir(order.folder)
    if order.session:
        os.setsid()
    elif order.group >= 0:
        os.setpgid(0, order.group)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _show(order)
    random.seed()
    from headrace import failpoints

    failpoints.arm(os.environ.get(failpoints.ENVIRONMENT_VARIABLE, ""))
    sys.orig_argv = list(order.command)
    _run(order.command[1:])


def _place(wanted: dict[int, int]) -> None:
    """Give descriptors the numbers that they are to have."""
    above = max(*wanted, *wanted.values()) + 1
    held = {}
    for number, descriptor in wanted.items():
        held[number] = os.dup(descriptor)
        while held[number] <= above:
            held[number] = os.dup(held[number])
    os.closerange(3, above + 1)
    for number, descriptor in held.items():
        os.dup2(descriptor, number)
    os.closerange(above + 1, max(held.values()) + 1)


def _show(order: Order) -> None:
    """Write command line and environment over this process's own, where ``/proc`` shows them."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end, variables, last = (int(fields[index]) for index in range(45, 49))
    text = "\0".join(order.command).encode()[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
    os.environ.clear()
    libc = ctypes.CDLL(None)
    ctypes.memset(variables, 0, last - variables)
    for name, value in order.environment.items():
        line = f"{name}={value}".encode() + b"\0"
        if variables + len(line) < last:
            ctypes.memmove(variables, line, len(line))
            libc.putenv(ctypes.c_void_p(variables))
            variables += len(line)
            # What Python remembers, without another copy in the C library.
            os.environ._data[name.encode()] = value.encode()  # type: ignore[attr-defined]
        else:
            os.environ[name] = value


def _run(arguments: list[str]) -> None:
    while arguments[0] in ("-u", "-W"):
        if arguments.pop(0) == "-W":
            warnings.filterwarnings(arguments.pop(0))  # type: ignore[arg-type]
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in given if path and path not in sys.path]
    for path in filter(None, given):
        # A Python that starts looks for it.
        if (first := Path(path, "sitecustomize.py")).exists():
            runpy.run_path(str(first))
    program = arguments.pop(0)
    if program == "-m":
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = arguments
        # Python warns where it runs a module that is imported already.
        sys.modules.pop(arguments[0], None)
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(program).resolve().parent))
        sys.argv = [program, *arguments]
        runpy.run_path(program, run_name="__main__")


def _preload() -> None:
    """Import what children need, without leaving a thread behind."""
    from headrace.spark.daemon import preload as preload_workers

    preload_workers()
    for module in _MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def _main() -> None:
    # The folder of this program is nobody's path.
    del sys.path[0]
    _preload()
    address = Path(sys.argv[1])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        # It has its name when it can be asked.
        listener.bind(f"{address}.new")
        listener.listen(128)
        Path(f"{address}.new").rename(address)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        order = _Server(listener).serve()
    if order is None:
        address.unlink(missing_ok=True)
    else:
        _become(order)


if __name__ == "__main__":
    _main()
