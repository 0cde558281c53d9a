"""Machines that share nothing but a network, on one Linux: namespaces with a bridge between them.

Each machine has processes, a network, a host name and a folder of its own; it may be cut off the
network, and it ends with all that runs on it.  Names resolve on every machine.  What lies outside
of :data:`HOME` is the file system of the real machine, unless it is hidden.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

from tests.faults.harness import await_true
from tests.run.session import quick_spark

__all__ = ["HOME", "SHARED", "Machine", "Network", "Running", "why_not"]

#: Where each machine has its own folder.
HOME = Path("/mnt")
#: Where machines have a folder in common that are given one.
SHARED = HOME / "shared"
_SUBNET = "10.77.0"
_TOOLS = ("ip", "unshare", "nsenter", "setpriv", "mount")
#: The order is that of `unshare`: what a machine has of its own.
_OF_ITS_OWN = ("--net", "--uts", "--ipc", "--mount", "--pid")
#: What programs on a machine are, wherever that lies on the real one.
_NEEDED = sorted(
    {Path(place).resolve() for place in (Path(__file__).parents[2], sys.prefix, sys.base_prefix)}
)
_SLEEP = ("sleep", "infinity")
_PATIENCE = 20


def why_not() -> str | None:
    """Say why machines cannot be made here; None where they can."""
    if sys.platform != "linux":
        return "machines are namespaces of Linux"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"machines need {', '.join(missing)}"
    tried = _as_root("unshare", *_OF_ITS_OWN, "--fork", "--mount-proc", "ip", "link")
    trial = subprocess.run(tried, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    return None if trial.returncode == 0 else f"no namespaces may be made: {trial.stderr.strip()}"


class Running:
    """A command that runs on a machine.

    Parameters
    ----------
    process
        What entered the machine and waits for the command.
    log
        Where the command's output goes.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._entered, self.log = process, log

    def end(self, limit: float) -> int:
        """Wait for the end; give the exit code."""
        return self._entered.wait(limit)

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._entered.poll() is None

    def output(self) -> str:
        """Return what it has printed."""
        return self.log.read_text(errors="replace")

    def await_output(self, text: str, patience: float = 120) -> None:
        """Wait until the command has printed a text."""
        ends = time.monotonic() + patience
        while text not in self.output():
            assert self.is_alive, f"it ended without a word of {text!r}:\n{self.output()}"
            assert time.monotonic() < ends, f"not a word of {text!r}:\n{self.output()}"
            time.sleep(0.2)

    def tree(self) -> list[psutil.Process]:
        """Return the command's process and all below it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._entered.pid).children(recursive=True)
        return []

    def send(self, number: signal.Signals, *, everywhere: bool = False) -> None:
        """Send a signal to the command, or to all of its processes."""
        for process in self.tree() if everywhere else self.tree()[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def interrupt(self, limit: float = 60) -> int:
        """End the command as Ctrl-C does; give the exit code."""
        self.send(signal.SIGINT)
        return self.end(limit)


class Machine:
    """One of the machines; see :class:`Network`."""

    def __init__(self, network: Network, number: int, name: str, folder: Path) -> None:
        self.name, self.address, self.folder = name, f"{_SUBNET}.{number}", folder
        self._network, self._port = network, f"m{number}"
        self._entered: list[subprocess.Popen[bytes]] = []
        self._init = network.spawn("unshare", *_OF_ITS_OWN, "--fork", "--kill-child", *_SLEEP)
        self._pid = network.child_of(self._init)

    def boot(self, hide: Sequence[Path], spark: Path | None, shared: Path | None) -> None:
        """Give the machine its name, its folder and its place in the network."""
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)
        pid, far = str(self._pid), f"f{self._port}"
        # That of the machine before may still be there for a moment.
        wires = (
            f"ip link delete {self._port} 2>/dev/null || true"
            f"; ip link add {self._port} type veth peer name {far}"
            f" && ip link set {far} netns {pid}"
            f" && ip link set {self._port} master bridge up"
        )
        self._network.run("sh", "-ec", wires)
        script = [
            "mount --make-rprivate /",
            "mount -t proc proc /proc",
            "mount -t tmpfs tmpfs /dev/shm",
            f"mount --bind {self._network.hosts} /etc/hosts",
            f"mount --bind {self.folder} {HOME}",
            f"hostname {self.name}",
            f"ip link set {far} name eth0",
            f"ip address add {self.address}/24 dev eth0",
            "ip link set lo up",
            "ip link set eth0 up",
        ]
        if spark is not None:
            (self.folder / "spark").mkdir(exist_ok=True)
            script.append(f"mount --bind -o ro {spark} {HOME}/spark")
        if shared is not None:
            (self.folder / SHARED.name).mkdir(exist_ok=True)
            script.append(f"mount --bind {shared} {SHARED}")
        script += [f"mount -t tmpfs tmpfs {folder}" for folder in hide]
        script += _own_temporary_folder([place for place in _NEEDED if not _is_in(place, hide)])
        subprocess.run(self._inside("sh", "-ec", "\n".join(script)), check=True, timeout=_PATIENCE)

    def start(self, *command: object, env: Mapping[str, str] | None = None) -> Running:
        """Start a command in the machine's folder; its output goes to a file there."""
        log = self.folder / f"{len(self._entered)}.log"
        own = {"HOME": str(HOME), "TMPDIR": str(HOME / "tmp"), "PATH": os.environ["PATH"]}
        own["JAVA_TOOL_OPTIONS"] = quick_spark()
        kept = {name: os.environ[name] for name in ("LANG", "JAVA_HOME") if name in os.environ}
        pairs = [f"{name}={value}" for name, value in {**kept, **own, **(env or {})}.items()]
        words = ("env", "-i", "-C", str(HOME), *pairs, *map(str, command))
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._inside(*words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._entered.append(process)
        return Running(process, log)

    def run(self, *command: object, env: Mapping[str, str] | None = None, limit: float = 60) -> str:
        """Run a command to its end and return what it printed; it must not fail."""
        running = self.start(*command, env=env)
        code = running.end(limit)
        assert code == 0, f"{command} on {self.name} ended with {code}:\n{running.output()}"
        return running.output()

    def cut(self) -> None:
        """Cut the machine off: what it sends is lost, as is what is sent to it."""
        self._network.run("ip", "link", "set", self._port, "down")

    def mend(self) -> None:
        """Bring the machine back into the network."""
        self._network.run("ip", "link", "set", self._port, "up")

    def await_port(self, port: int, running: Running, patience: float = 60) -> None:
        """Wait until what was started listens on a port of the machine."""
        tried = ("bash", "-c", f"exec 3<>/dev/tcp/{self.address}/{port}")

        def listens() -> bool:
            assert running.is_alive, f"nobody listens on {self.name}:\n{running.output()}"
            trial = subprocess.run(self._inside(*tried), capture_output=True, check=False)
            return trial.returncode == 0

        await_true(f"port {port} of {self.name}", listens, patience=patience)

    def stop(self) -> None:
        """End the machine with all that runs on it."""
        self._network.end(self._init)
        for process in self._entered:
            process.wait(_PATIENCE)

    def _inside(self, *command: str) -> list[str]:
        entering = ("nsenter", "-t", str(self._pid), *self._network.own_user, "-n", "-u", "-i")
        return [*entering, "-m", "-p", "--", *command]


class Network:
    """Makes machines and the bridge between them.

    Parameters
    ----------
    folder
        Where the folders of the machines are.
    names
        Host names; they resolve everywhere.

    Examples
    --------
    ::

        with Network(tmp_path, ["broker", "worker"]) as network:
            network.boot("broker")
            network.boot("worker").run("ping", "-c1", "broker")
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder, self._names = folder, list(names)
        self.hosts = folder / "hosts"
        self.own_user = () if os.geteuid() == 0 else ("-U", "--preserve-credentials")
        self._machines: dict[str, Machine] = {}

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        addresses = [f"{_SUBNET}.{number} {name}" for number, name in enumerate(self._names, 1)]
        self.hosts.write_text("\n".join(["127.0.0.1 localhost", *addresses, ""]))
        self._switch = self._spawn(*_as_root("unshare", "--net", "--fork", "--kill-child", *_SLEEP))
        self._pid = self.child_of(self._switch)
        self.run(
            "sh", "-ec", "ip link set lo up; ip link add bridge type bridge; ip link set bridge up"
        )
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self._machines.values():
            machine.stop()
        self.end(self._switch)

    def __getitem__(self, name: str) -> Machine:
        return self._machines[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._machines)

    def boot(
        self,
        name: str,
        *,
        hide: Sequence[Path] = (),
        spark: Path | None = None,
        folder: Path | None = None,
        shared: Path | None = None,
    ) -> Machine:
        """Start a machine.

        Parameters
        ----------
        name
            One of the host names.
        hide
            Folders of the real machine that this one does not have.
        spark
            A Spark that this one has below its folder, read-only.
        folder
            That of the machine before, which has ended; without, a new one.
        shared
            A folder of the real machine that this one has as :data:`SHARED`, as if from a file
            server that no cut reaches.
        """
        number = self._names.index(name) + 1
        folder = folder or self._folder / f"{name}-{time.monotonic_ns()}"
        machine = Machine(self, number, name, folder)
        self._machines[name] = machine
        machine.boot(hide, spark, shared)
        return machine

    def run(self, *command: str) -> None:
        """Run a command where the bridge is."""
        subprocess.run(self._inside(*command), check=True, timeout=_PATIENCE)

    def spawn(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a command where the bridge is; it ends with the network."""
        return self._spawn(*self._inside(*command))

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End what was spawned."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        process.kill()
        process.wait()

    def child_of(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the innermost process of what was spawned; give its id."""
        found: list[psutil.Process] = []

        def begun() -> bool:
            assert process.poll() is None, f"{process.args!r} ended with {process.returncode}"
            found[:] = psutil.Process(process.pid).children(recursive=True)
            return bool(found) and found[-1].name() == _SLEEP[0]

        await_true("a machine", begun, patience=_PATIENCE)
        return found[-1].pid

    def _inside(self, *command: str) -> list[str]:
        return ["nsenter", "-t", str(self._pid), *self.own_user, "-n", "--", *command]

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        ending = ("setpriv", "--pdeathsig", "KILL")
        with (self._folder / "errors").open("ab") as errors:
            return subprocess.Popen([*ending, *command], stdin=subprocess.DEVNULL, stderr=errors)


def _is_in(place: Path, folders: Sequence[Path]) -> bool:
    return any(place.is_relative_to(folder) for folder in folders)


def _own_temporary_folder(kept: Sequence[Path]) -> Iterator[str]:
    """Give the machine a /tmp of its own, in which what it needs of the real one stays."""
    needed = [place for place in kept if place.is_relative_to("/tmp")]
    aside = [f"{HOME}/kept-{number}" for number in range(len(needed))]
    for place, there in zip(needed, aside, strict=True):
        yield f"mkdir -p {there}; mount --bind {place} {there}"
    yield "mount -t tmpfs tmpfs /tmp"
    for place, there in zip(needed, aside, strict=True):
        yield f"mkdir -p {place}; mount --bind {there} {place}"


def _as_root(*command: str) -> list[str]:
    if os.geteuid() == 0:
        return list(command)
    return [command[0], "--user", "--map-root-user", *command[1:]]
