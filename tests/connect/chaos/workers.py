"""Three workers as people run them, ``headrace connect worker --group``, and what befalls them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.connect.chaos import marked
from tests.run.forking import descendants

__all__ = ["DELAY", "Worker", "Workers", "running_workers", "until"]

ROOT = Path(__file__).parents[3]
_ENGINE = "headrace.connect.data.engine"
#: What is lost moves after so long; the lease of a worker lasts four fifths of it.
DELAY = 15.0
#: Times that are shorter than those of a worker that is told nothing.
QUICK = (
    *("--rebalance-delay", f"{DELAY} s", "--fence-after", f"{DELAY * 0.4} s"),
    *("--session-timeout", f"{DELAY * 0.4} s"),
)
#: What is shown of a log where a test fails, characters.
_END = 6000


def show_end(name: str, log: Path) -> None:
    """Print what a process logged last: it is seen where the test has failed."""
    if log.exists():
        print(f"the end of what {name} logged:", log.read_text()[-_END:], sep="\n")


def until(holds: Callable[[], object], patience: float, what: str) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not in {patience:g} s"
        time.sleep(0.1)


class Worker:
    """One worker, through all its lives.

    Parameters
    ----------
    name
        Its id.
    namesrv
        The cluster of brokers.
    folder
        Where its own folder and its log are.
    options
        More options, such as how long it waits for what; without a group it stands alone.
    """

    def __init__(self, name: str, namesrv: str, folder: Path, options: Sequence[str] = ()) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        self._command = [
            *(sys.executable, "-m", "headrace", "connect", "worker", "--namesrv", namesrv),
            *("--worker-id", name, "--port", "0", "--data", str(folder / name)),
            *("--call-timeout", "60 s"),
            *options,
        ]
        self._environment = {
            **{one: text for one, text in os.environ.items() if not one.startswith("HEADRACE_")},
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        }
        self._process: subprocess.Popen[str] | None = None
        #: Where its REST API is; empty while it starts.
        self.url = ""

    def start(self) -> None:
        """Begin a life; `url` is there when REST is."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        threading.Thread(target=self._listen, args=[self._process], daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            line = process.stdout.readline()
        if process is self._process and "listening on" in line:
            self.url = line.split()[5].rstrip(",")

    @property
    def pid(self) -> int:
        """Id of the supervisor."""
        assert self._process is not None
        return self._process.pid

    @property
    def lives(self) -> bool:
        """Whether its process has not ended."""
        return self._process is not None and self._process.poll() is None

    def family(self) -> list[psutil.Process]:
        """Give all processes below the supervisor."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return descendants(self.pid)
        return []

    def is_connected(self, port: int, there: int) -> bool:
        """Tell whether one of its processes has a connection from a port to another one."""
        for process in [psutil.Process(self.pid), *self.family()]:
            with contextlib.suppress(psutil.Error):
                for one in process.net_connections("tcp"):
                    # One that listens has no other end.
                    ports = [end.port for end in (one.laddr, one.raddr) if len(end)]
                    if ports == [port, there]:
                        return True
        return False

    def kill(self) -> None:
        """SIGKILL the supervisor alone: the rest has to end by itself."""
        assert self._process is not None
        self.url = ""
        self._process.kill()
        self._process.wait()

    def kill_engine(self) -> bool:
        """SIGKILL its engine with all that belongs to it; tell whether there was one."""
        for process in self.family():
            with contextlib.suppress(psutil.Error):
                if _ENGINE in process.cmdline():
                    os.killpg(process.pid, signal.SIGKILL)
                    return True
        return False

    def signal(self, number: signal.Signals) -> None:
        """Send the supervisor a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, patience: float) -> int:
        """End in order; give the exit status."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(patience)


class Workers:
    """Three of them, and somebody who strikes at them.

    Parameters
    ----------
    namesrv
        The cluster of brokers.
    folder
        For all that they write.
    times
        Options that say how long they wait for what.
    """

    def __init__(self, namesrv: str, folder: Path, times: Sequence[str] = QUICK) -> None:
        options = ("--group", "chaos", "--master", "local[2]", "--plugins", marked.__name__, *times)
        self.all = [Worker(name, namesrv, folder, options) for name in ("w1", "w2", "w3")]
        self._http = httpx.Client(timeout=20)
        #: What was done to them.
        self.strikes: Counter[str] = Counter()
        self._still: list[tuple[float, Worker]] = []

    def start(self) -> None:
        """Start all, and wait until they answer."""
        for worker in self.all:
            worker.start()
        until(lambda: len(self.ready()) == len(self.all), 300, "workers start")

    def ready(self) -> list[Worker]:
        """Give those that answer."""
        still = {worker for _, worker in self._still}
        return [one for one in self.all if one.url and one not in still]

    def ask(self, worker: Worker, method: str, path: str, **given: Any) -> httpx.Response:
        """Send a request to one of them."""
        return self._http.request(method, f"{worker.url}{path}", **given)

    def get(self, path: str) -> Any:
        """Ask whoever answers."""
        for worker in self.ready():
            with contextlib.suppress(httpx.HTTPError):
                answer = self.ask(worker, "GET", path)
                if answer.status_code == 200:
                    return answer.json()
        return None

    def strike(self, chance: random.Random, kinds: Mapping[str, int]) -> None:
        """Do something bad to a random worker that is well, while another one is."""
        self._wake()
        ready = self.ready()
        if len(ready) < 2:
            return
        kind = chance.choices(list(kinds), list(kinds.values()))[0]
        worker = chance.choice(ready)
        if getattr(self, f"_{kind}")(worker, chance):
            self.strikes[kind] += 1

    def _worker(self, worker: Worker, chance: random.Random) -> bool:
        del chance
        worker.kill()
        worker.start()
        return True

    def _engine(self, worker: Worker, chance: random.Random) -> bool:
        del chance
        return worker.kill_engine()

    def _host(self, worker: Worker, chance: random.Random) -> bool:
        with contextlib.suppress(httpx.HTTPError, ProcessLookupError):
            units = self.ask(worker, "GET", "/admin/tasks").json()
            pids = [unit["pid"] for unit in units if unit["pid_alive"] and unit["pid"]]
            if pids:
                os.kill(chance.choice(pids), signal.SIGKILL)
                return True
        return False

    def _stillness(self, worker: Worker, chance: random.Random) -> bool:
        """Have a supervisor stand still, often for longer than its lease."""
        worker.signal(signal.SIGSTOP)
        self._still.append((time.monotonic() + chance.uniform(0.3, 1.5) * DELAY, worker))
        return True

    def _wake(self, *, all_of_them: bool = False) -> None:
        for end, worker in list(self._still):
            if all_of_them or time.monotonic() >= end:
                self._still.remove((end, worker))
                worker.signal(signal.SIGCONT)

    def tend(self) -> None:
        """Start those again that gave up, as whoever runs services does: Spark may be too slow."""
        for worker in self.all:
            if not worker.lives:
                worker.url = ""
                worker.start()
                self.strikes["gave up"] += 1

    def calm_down(self) -> None:
        """Let all that was struck come back."""
        self._wake(all_of_them=True)

        def are_back() -> bool:
            self.tend()
            return len(self.ready()) == len(self.all)

        until(are_back, 600, "workers come back")

    def close(self) -> None:
        """Kill what still runs, and see that nothing is left of it."""
        self._wake(all_of_them=True)
        self._http.close()
        lived = [one for one in self.all if one.lives]
        families = [process for worker in lived for process in worker.family()]
        for worker in lived:
            worker.kill()
        _, left = psutil.wait_procs(families, timeout=30)
        for process in left:
            process.kill()
        assert left == [], f"processes that outlived their workers: {left}"


@contextlib.contextmanager
def running_workers(namesrv: str, folder: Path, times: Sequence[str] = QUICK) -> Iterator[Workers]:
    """Three workers for the time of a test."""
    workers = Workers(namesrv, folder, times)
    try:
        workers.start()
        yield workers
    except BaseException:
        for one in workers.all:
            show_end(one.name, one.log)
        raise
    finally:
        workers.close()
