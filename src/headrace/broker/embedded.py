"""The broker in a thread of this process, and in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace.broker.server import BrokerServer, BrokerStatistics
from headrace.durations import format_duration
from headrace.errors import HeadraceError, SettingsError, StoreError, StoreLockedError
from headrace.private import owners_folder
from headrace.watched import watched_thread

if TYPE_CHECKING:
    from headrace.broker.settings import BrokerSettings


READY_LINE = "headrace broker listening on {address}, data in {data}"
"""What a broker process prints once it takes connections."""

_READY_START = READY_LINE.partition("{")[0]


class ExitCode:
    """How a broker process ended."""

    #: Settings cannot work, for example a port in use.
    SETTINGS = 64
    #: The data folder is in use by another process.
    LOCKED = 73
    #: The store cannot be opened.
    STORE = 74


_ERRORS: dict[int, type[HeadraceError]] = {
    ExitCode.SETTINGS: SettingsError,
    ExitCode.LOCKED: StoreLockedError,
    ExitCode.STORE: StoreError,
}


class EmbeddedBroker:
    """A broker in a thread of this process.

    Parameters
    ----------
    data, port, settings
        As of :class:`BrokerServer`.

    Examples
    --------
    >>> import tempfile
    >>> with EmbeddedBroker(Path(tempfile.mkdtemp())) as broker:
    ...     broker.address.rpartition(":")[0]
    '127.0.0.1'
    """

    def __init__(self, data: Path, port: int = 0, settings: BrokerSettings | None = None) -> None:
        self._server = BrokerServer(data, port, settings)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._error: BaseException | None = None
        self._address = ""

    @property
    def address(self) -> str:
        """``host:port`` of the broker."""
        return self._address

    def statistics(self) -> BrokerStatistics:
        """Return what the broker holds and has done."""
        assert self._loop is not None

        async def ask() -> BrokerStatistics:
            return self._server.statistics()

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result()

    def start(self) -> None:
        """Start the broker and wait until it takes connections."""
        self._thread = watched_thread(
            lambda: asyncio.run(self._serve()), name="headrace-broker", on_failure=self._fail
        )
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            await self._server.start()
        except BaseException as error:  # noqa: BLE001  (raised in the thread that waits)
            self._error = error
            self._ready.set()
            return
        self._address = self._server.address
        self._ready.set()
        try:
            await self._server.serve_until(self._stop)
        finally:
            await self._server.stop()

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._ready.set()

    def stop(self) -> None:
        """Stop the broker and wait until it has released its port and folder.

        Raises
        ------
        BaseException
            What has ended a part of the broker, and the broker with it.
        """
        if self._thread is None or self._loop is None or self._stop is None:
            return
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has ended by itself just now
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = None
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


@dataclass(slots=True)
class BrokerProcess:
    """A broker in a process of its own."""

    #: ``host:port`` of the broker.
    address: str
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self.process.pid

    def stop(self, patience: timedelta = timedelta(seconds=30)) -> None:
        """Stop the broker and wait for it; one that takes too long is killed."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(patience.total_seconds())
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._reap()

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def _reap(self) -> None:
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def spawn_broker(
    data: Path,
    port: int = 0,
    *,
    options: Sequence[str] = (),
    environment: dict[str, str] | None = None,
    patience: timedelta = timedelta(seconds=60),
) -> BrokerProcess:
    """Start a broker in a process of its own and wait until it takes connections.

    It stops when this process is gone, even if that was killed.

    Parameters
    ----------
    data, port
        As of :class:`BrokerServer`.
    options
        Further options of ``python -m headrace.broker``.
    environment
        Variables to set for the process, on top of this one's.
    patience
        How long the start may take; recovery after a crash is part of it.

    Raises
    ------
    StoreLockedError
        When another process uses the folder.
    SettingsError
        When the port is in use or an option is invalid.
    StoreError
        When the store cannot be opened, or the broker did not start.
    """
    command = [sys.executable, "-m", "headrace.broker", "--until-eof"]
    command += ["--data", str(data), "--port", str(port)]
    owners_folder(data)
    log = data / "broker.log"
    with log.open("ab") as errors:
        begin = errors.tell()
        process = subprocess.Popen(
            [*command, *options],
            stdin=subprocess.PIPE,
            # Ctrl-C in a terminal goes to the whole group: the job must end before its broker.
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **(environment or {})},
        )
    try:
        line = _first_line(process, patience)
    except BaseException:
        process.kill()
        BrokerProcess("", process).kill()
        raise
    if not line.startswith(_READY_START):
        process.kill() if line else process.wait()
        BrokerProcess("", process).kill()
        raise _start_error(process.returncode, log, begin)
    return BrokerProcess(line[len(_READY_START) :].partition(",")[0], process)


def _first_line(process: subprocess.Popen[bytes], patience: timedelta) -> str:
    assert process.stdout is not None
    deadline = time.monotonic() + patience.total_seconds()
    line = b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            message = f"the broker took no connections within {format_duration(patience)}"
            raise StoreError(message, hint="Give it more time: recovery reads the log.")
        piece = os.read(process.stdout.fileno(), 4096)
        if not piece:
            break
        line += piece
    return line.decode()


def _start_error(code: int, log: Path, begin: int) -> HeadraceError:
    with log.open("rb") as file:
        file.seek(begin)
        said = file.read().decode(errors="replace").strip()
    kind = _ERRORS.get(code, StoreError)
    return kind(f"the broker did not start (exit code {code}): {said[-2000:]}")
