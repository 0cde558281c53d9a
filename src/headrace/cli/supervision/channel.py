"""Messages between a driver and its supervisor: words, over a socket that ends with either.

The end of the socket is the end of the other side, however it came: the supervisor needs no look
at processes to know that its driver died, and a driver whose supervisor is gone stops in order.
A living driver says so every second; one that says nothing for long hangs.
Secrets reach a driver by a variable: all users of a machine see command lines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from headrace.cli._terminal import say, short_driver
from headrace.errors import FencedError, HeadraceError
from headrace.settings import JobSettings
from headrace.watched import watched_thread

if TYPE_CHECKING:
    from headrace.spark import StreamJob, TransactionJob


#: How long a driver whose supervisor died may take to stop in order before it just ends, s.
_STOP_PATIENCE = 6.0
#: How often a driver says that it lives, and how long its work may stand still for that, s.
_BEAT, _STANDSTILL = 1.0, 5.0
_SECRETS = [field.name for field in dataclasses.fields(JobSettings) if field.metadata["secret"]]
_OPTIONS = {f"--{name.replace('_', '-')}" for name in _SECRETS}
_VARIABLE = "_HEADRACE_SECRETS"


class Word(StrEnum):
    """A message of the channel."""

    #: A sign of life.
    ALIVE = "alive"
    #: Driver: the broker of the data folder is needed.  Supervisor: it runs.
    BROKER = "broker"
    #: A standby is warm.
    READY = "ready"
    #: A process has become the job's driver.
    DRIVING = "driving"
    #: It has made its first commit.
    COMMITTED = "committed"
    #: It could not begin, for a reason that may pass.
    HINDERED = "hindered"
    #: A driver ends because another one, elsewhere, has taken the job over.
    FENCED = "fenced"
    #: Supervisor: it runs no driver, so the lease must tell when there is none.
    ALONE = "alone"
    #: Supervisor: take over now, the driver is dead.
    GO = "go"


class Channel:
    """The driver's end of the socket.

    Parameters
    ----------
    number
        The descriptor that the supervisor left open.
    """

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)
        # Whatever this process starts must not keep the socket open after its death.
        self._socket.set_inheritable(False)
        #: Set when the job is to be taken over.
        self.go = threading.Event()
        #: Set while the supervisor runs no driver that it could see dying.
        self.alone = threading.Event()
        self._broker = threading.Event()
        self._events = {Word.GO: self.go, Word.ALONE: self.alone, Word.BROKER: self._broker}
        self._stalled: Callable[[], float] = float
        # Before a supervisor kills a driver that hangs, it has it show where its threads are.
        with contextlib.suppress(RuntimeError):
            # There is no standard error to show it on.
            faulthandler.register(signal.SIGUSR1)
        for name, work in (("listener", self._listen), ("beat", self._beat)):
            watched_thread(work, name=f"headrace-{name}", on_failure=_end).start()

    def watch(self, stalled: Callable[[], float]) -> None:
        """Be silent while the work stands still.

        Parameters
        ----------
        stalled
            Returns the seconds for which it has stood still.
        """
        self._stalled = stalled

    def tell(self, word: Word) -> None:
        """Send the supervisor a word, unless it is gone."""
        with contextlib.suppress(OSError):
            self._socket.sendall(f"{word}\n".encode())

    def await_broker(self) -> None:
        """Let the supervisor start the broker of the data folder, unless one runs."""
        self.tell(Word.BROKER)
        self._broker.wait()

    def _beat(self) -> None:
        alive = f"{Word.ALIVE}\n".encode()
        while True:
            if self._stalled() < _STANDSTILL:
                try:
                    # A supervisor that is stopped itself must not hold up its driver.
                    self._socket.send(alive, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    pass
                except OSError:
                    return
            time.sleep(_BEAT)

    def _listen(self) -> None:
        with contextlib.suppress(OSError), self._socket.makefile() as lines:
            for line in lines:
                self._events[Word(line.strip())].set()
        _end()


def _end(_error: BaseException | None = None) -> None:
    """End the driver, which nobody looks after any more, in order if it still can."""
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_STOP_PATIENCE)
    os._exit(1)


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """Return a command line without the options whose values are secrets.

    >>> without_secrets(["run", "--secret-key", "a", "--partitions", "2", "--secret-key=b", "job.py"])
    ['run', '--partitions', '2', 'job.py']
    """
    kept = []
    rest = iter(arguments)
    for argument in rest:
        option, equals, _ = argument.partition("=")
        if option not in _OPTIONS:
            kept.append(argument)
        elif not equals:
            next(rest, None)
    return kept


def hand_over(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the variable that tells a driver those options, from settings by name."""
    secrets = {name: given[name] for name in _SECRETS if given.get(name) is not None}
    return {_VARIABLE: json.dumps(secrets)} if secrets else {}


def taken_over() -> dict[str, Any]:
    """Take what the supervisor has handed over, by name; processes started from here lack it."""
    secrets: dict[str, Any] = json.loads(os.environ.pop(_VARIABLE, "{}"))
    return secrets


# What a driver does for its supervisor: it stands by when asked to, and tells how it stands.


def stand_by(job: StreamJob | TransactionJob, supervisor: Channel) -> bool:
    """Wait warm until the job has no driver; return whether it had one."""
    from headrace.spark.standby import Standby

    standby = Standby(job)

    def ready() -> None:
        supervisor.tell(Word.READY)
        driver = short_driver(standby.driver()) if supervisor.alone.is_set() else ""
        elsewhere = f": {driver} runs it, or has its lease" if driver else ""
        say(f"Standing by for {job.topology.name}{elsewhere}.")

    return standby.wait(supervisor.go, alone=supervisor.alone, ready=ready)


@contextlib.contextmanager
def telling_of(
    job: StreamJob | TransactionJob, supervisor: Channel | None
) -> Iterator[Callable[[], None]]:
    """Yield a function that tells the supervisor of the start; tell it why the job ended."""
    began = False

    def begun() -> None:
        nonlocal began
        began = True
        if supervisor is not None:
            supervisor.tell(Word.DRIVING)
            threading.Thread(target=_tell_of_commit, args=(job, supervisor), daemon=True).start()

    try:
        yield begun
    except FencedError:
        if supervisor is not None:
            supervisor.tell(Word.FENCED)
        raise
    except HeadraceError as error:
        # A driver that has begun has tried as often as it is told to.
        if supervisor is not None and error.retriable and not began:
            supervisor.tell(Word.HINDERED)
        raise


def _tell_of_commit(job: StreamJob | TransactionJob, supervisor: Channel) -> None:
    with contextlib.suppress(HeadraceError):
        job.await_commit()
        supervisor.tell(Word.COMMITTED)
