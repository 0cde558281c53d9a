"""Servers that listen on one port of 127.0.0.1, from their start to their end."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.connect.servers.ending import dies_with_parent

__all__ = ["running_server"]

_PATIENCE = 90


@contextmanager
def running_server(
    name: str,
    command: Callable[[Path, int], Sequence[str | Path]],
    answers: Callable[[int], bool],
) -> Iterator[int]:
    """Start a server in a folder of its own; stop and remove it in any case.

    Parameters
    ----------
    command
        Gives the command for a folder and a port.
    answers
        Tells whether it works on that port.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"headrace-{name}-"))
    try:
        process, port = _start(name, folder, command, answers)
        try:
            yield port
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(
    name: str,
    folder: Path,
    command: Callable[[Path, int], Sequence[str | Path]],
    answers: Callable[[int], bool],
) -> tuple[subprocess.Popen[bytes], int]:
    log = folder / "log"
    for _ in range(3):  # somebody else may take the port before the server does
        port = _free_port()
        with log.open("wb") as output:
            process = subprocess.Popen(
                command(folder, port),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                start_new_session=True,
                preexec_fn=dies_with_parent,  # noqa: PLW1509  # it makes one system call
            )
        if _answered(process, port, answers):
            return process, port
    raise AssertionError(f"{name} did not start:\n{log.read_text()}")


def _answered(process: subprocess.Popen[bytes], port: int, answers: Callable[[int], bool]) -> bool:
    deadline = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        if answers(port):
            return True
        time.sleep(0.1)
    process.kill()
    process.wait()
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
