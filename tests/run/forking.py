"""Processes that are forked from one that has all imported, behind the face of ``subprocess``.

:class:`ForkedPopen` stands in for ``subprocess.Popen`` for the time of a run: what it finds among
:data:`FORKED` becomes a child of the fork server, all else starts as ever.  Spark's Java starts its
Python workers by the program that :func:`fork_client` names.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

#: Where the fork server of this run listens.
VARIABLE = "TESTS_FORK_SERVER"

_NUMBER = struct.Struct("=i")
_PATIENCE = 120.0
#: Room for what ``/proc`` shows of children: their command lines and variables.
_PADDING = "-" * 4096
_ROOM = {"TESTS_ROOM": "-" * 16_384}
_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]

#: The modules that are forked where somebody runs them by ``python -m``; the word after
#: ``headrace`` is its command.
FORKED = frozenset(
    {
        "headrace broker",
        "headrace connect",
        "headrace run",
        "headrace.broker",
        "headrace.connect.data.engine",
        "headrace.connect.hosts.fork_server",
        "tests.connect.coordination.host_program",
        "tests.connect.coordination.worker_program",
        "tests.faults.journal_program",
        "tests.run.servers",
        "tests.store.compaction.kill_child",
        "tests.store.kill_child",
        "tests.transactions.cases.local",
        "tests.transactions.cases.spark",
    }
)


class ForkedPopen(subprocess.Popen[Any]):
    """``subprocess.Popen`` whose child is forked from the fork server, where it can be."""

    def _execute_child(  # noqa: PLR0917  # as it is called
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: bool,
        pass_fds: Any,
        cwd: Any,
        env: Mapping[str, str] | None,
        startupinfo: Any,
        creationflags: int,
        shell: bool,
        *rest: Any,
    ) -> None:
        address = os.environ.get(VARIABLE, "")
        plain = close_fds and not (preexec_fn or shell or executable)
        if not (address and plain and _is_forked(args)):
            before = (executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo)
            super()._execute_child(args, *before, creationflags, shell, *rest)  # type: ignore[misc]
            return
        pipes, (*_, session, group) = rest[:6], rest[6:]
        streams = {0: pipes[0], 1: pipes[3], 2: pipes[5]}
        given = {number: number if pipe == -1 else pipe for number, pipe in streams.items()}
        try:
            self.pid = _ask(
                address,
                given | {number: number for number in pass_fds},
                command=[os.fspath(word) for word in args],
                environment=dict(os.environ if env is None else env),
                folder=os.fspath(cwd or Path.cwd()),
                session=bool(session),
                group=group,
            )
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _is_forked(args: Any) -> bool:
    if isinstance(args, (str, bytes, os.PathLike)):
        return False
    words = [os.fspath(word) for word in args[:4]]
    if words[:2] != [sys.executable, "-m"]:
        return False
    return words[2] in FORKED or " ".join(words[2:4]) in FORKED


def _ask(address: str, descriptors: Mapping[int, int], **asked: Any) -> int:
    """Have a child of this process forked; give its id."""
    text = json.dumps(asked | {"bound": False, "numbers": list(descriptors)}).encode()
    rights = array.array("i", descriptors.values())
    _await(address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.connect(address)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        channel.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        pid: int = _NUMBER.unpack(channel.recv(_NUMBER.size))[0]
        return pid


def fork_client(folder: Path) -> Path:
    """Make the program that stands in for Python where Java starts it, and name it."""
    path = folder / "python"
    base = Path(sys.executable).resolve()
    text = (_HERE / "fork_client.py").read_text()
    path.write_text(f"#!{base} -IS\n{text}")
    path.chmod(0o700)
    return path


def descendants(pid: int) -> list[psutil.Process]:
    """Return the processes that descend from one.

    In place of those that only wait for a process which was forked for them, there is that process.
    """
    forked = _forked()
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        for one in forked.get(process.pid, [process]):
            found.append(one)
            if one is not process:
                with contextlib.suppress(psutil.Error):
                    found += one.children(recursive=True)
    return found


def _forked() -> dict[int, list[psutil.Process]]:
    """Find the processes that were forked for others that wait for them."""
    found: dict[int, list[psutil.Process]] = defaultdict(list)
    name = b"TESTS_FORK_CLIENT="
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, psutil.Error):
            text = (entry / "environ").read_bytes()
            if name in text:
                client = int(text.partition(name)[2].partition(b"\0")[0])
                process = psutil.Process(int(entry.name))
                # Its own children have the variable too.
                if (parent := process.parent()) and not _variable(parent.pid, name):
                    found[client].append(process)
    return found


def _variable(pid: int, name: bytes) -> bool:
    return name in Path("/proc", str(pid), "environ").read_bytes()


@contextmanager
def fork_server(folder: Path) -> Iterator[Path]:
    """Run a fork server for the time of a run; give its address, where it will soon listen."""
    address = folder / "fork.sock"
    with (folder / "fork_server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(_HERE / "fork_server.py"), str(address), _PADDING],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=_ROOT,
            env=os.environ | _ROOM,
        )
    try:
        yield address
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(_PATIENCE)


def _await(address: str) -> None:
    """Wait until the server has imported everything: it is the first that is asked who waits."""
    deadline = time.monotonic() + _PATIENCE
    while not Path(address).exists():
        assert time.monotonic() < deadline, f"the fork server at {address} did not start"
        time.sleep(0.01)
