"""What fake hosts do once they run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.connect.worker import Figures, HostSpec, Moved, TopicTouched
from tests.connect.fakes import plugins

if TYPE_CHECKING:
    from tests.connect.fakes.launcher import FakeHost, FakePositions

__all__ = ["Behaviour", "ChaosError", "behaviour_of"]

_ROWS_A_STEP = 5


class ChaosError(Exception):
    """User code that failed."""


class Behaviour(Protocol):
    """How a connector or task behaves."""

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do but to wait for its end."""

    def says(self, what: str) -> str:
        """What it is told to do in a callback."""

    def start(self, host: FakeHost, positions: FakePositions) -> None:
        """Begin."""

    def step(self, host: FakeHost, positions: FakePositions) -> None:
        """Do a little."""


class _Idle:
    """Does nothing, or what its config says."""

    idle = True

    def __init__(self, spec: HostSpec) -> None:
        self.config = spec.config
        self._prefix = "chaos.connector" if spec.kind == "connector" else "chaos"

    def says(self, what: str) -> str:
        return self.config.get(f"{self._prefix}.{what}", "")

    def start(self, host: FakeHost, positions: FakePositions) -> None:
        pass

    def step(self, host: FakeHost, positions: FakePositions) -> None:
        pass


class _FileSource(_Idle):
    """Sends the lines of a file; its position counts bytes."""

    idle = False

    def start(self, host: FakeHost, positions: FakePositions) -> None:
        self._file = Path(self.config["file"])
        self._told = False
        self._lines = 0

    def step(self, host: FakeHost, positions: FakePositions) -> None:
        partition = {"filename": str(self._file)}
        committed = positions.get(host.spec.kept_as, partition)
        at = 0 if committed is None else int(committed["position"])
        data = self._file.read_bytes() if self._file.exists() else b""
        end = data.rfind(b"\n") + 1
        topic = self.config["topic"]
        positions.topics[topic] += data[at:end].decode().splitlines()
        if end > at or (committed is None and end):
            positions.set(host.spec.kept_as, partition, {"position": end})
            self._lines += data[at:end].count(b"\n")
            host.tell(Moved(Figures(records=self._lines, bytes=end - self._lines)))
        if end and not self._told:
            self._told = True
            host.tell(TopicTouched(topic))


class _FileSink(_Idle):
    """Writes what is in its topics to a file; one queue for each topic."""

    idle = False

    def start(self, host: FakeHost, positions: FakePositions) -> None:
        self._file = Path(self.config["file"])
        try:
            self._file.touch()
        except OSError as error:
            raise ChaosError(f"{type(error).__name__}: {error}") from None

    def step(self, host: FakeHost, positions: FakePositions) -> None:
        for topic in self.config["topics"].split(","):
            queue = {"rocketmq_topic": topic, "rocketmq_broker": "fake", "rocketmq_queue_id": 0}
            committed = positions.get(host.spec.kept_as, queue)
            at = 0 if committed is None else int(committed["rocketmq_queue_offset"])
            lines = positions.topics[topic][at:]
            if lines:
                with self._file.open("a") as file:
                    file.write("".join(f"{line}\n" for line in lines))
                offset = {"rocketmq_queue_offset": at + len(lines)}
                positions.set(host.spec.kept_as, queue, offset)
                host.tell(TopicTouched(topic))


class _Chaos(_Idle):
    """Makes numbered records, and sends them through its transforms."""

    @property
    def idle(self) -> bool:  # type: ignore[override]
        return not self.config.get("transforms")

    def start(self, host: FakeHost, positions: FakePositions) -> None:
        self._next = 1

    def step(self, host: FakeHost, positions: FakePositions) -> None:
        for _ in range(_ROWS_A_STEP):
            number, self._next = self._next, self._next + 1
            if self._transforms_raise(number):
                self._tolerate(number, positions)

    def _transforms_raise(self, number: int) -> bool:
        names = [name for name in self.config.get("transforms", "").split(",") if name]
        return any(
            self.config[f"transforms.{name}.type"] == plugins.CHAOS_TRANSFORM
            and self.config.get(f"transforms.{name}.raise.on") == str(number)
            for name in names
        )

    def _tolerate(self, number: int, positions: FakePositions) -> None:
        if self.config.get("errors.tolerance", "none") != "all":
            raise ChaosError("Tolerance exceeded in error handler")
        if topic := self.config.get("errors.deadletterqueue.topic.name"):
            positions.dead_letters[topic].append(str(number))


_TASKS = {
    plugins.FILE_SOURCE: _FileSource,
    plugins.FILE_SINK: _FileSink,
    plugins.CHAOS: _Chaos,
}


def behaviour_of(spec: HostSpec) -> Behaviour:
    """Choose how a host behaves."""
    if spec.kind == "connector":
        return _Idle(spec)
    return _TASKS.get(spec.config["connector.class"], _Idle)(spec)
