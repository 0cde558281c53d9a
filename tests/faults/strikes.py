"""What happens to a running job in the long run: kills, and processes that stand still.

A process that stands still is a zombie of twice the time after which others give up on it; then
it wakes and goes on with what it believes.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import psutil

from tests.faults.harness import KillTest, await_true

#: What the soak's drivers wait for an answer of a broker, and for a sign of life of an executor.
PATIENCE_SECONDS = 5

Chance = random.Random
Strike = Callable[[KillTest, Chance], None]


@contextlib.contextmanager
def standing_still(process: psutil.Process) -> Iterator[None]:
    """A process stands still, for twice as long as anybody waits for it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.suspend()
    try:
        time.sleep(2 * PATIENCE_SECONDS)
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def _kill_driver(run: KillTest, _: Chance) -> None:
    run.kill_driver()


def _kill_java(run: KillTest, _: Chance) -> None:
    run.kill_java()


def _kill_worker(run: KillTest, chance: Chance) -> None:
    run.kill_worker(chance.choice)


def _kill_executor(run: KillTest, chance: Chance) -> None:
    run.kill_executor(chance.choice)


def _kill_broker(run: KillTest, _: Chance) -> None:
    run.kill_broker()


def _stop_driver(run: KillTest, _: Chance) -> None:
    run.put_to_sleep()


def _stop_java(run: KillTest, _: Chance) -> None:
    run.put_java_to_sleep()


def _pause_java(run: KillTest, _: Chance) -> None:
    driver = run.driver
    await_true("a Java process", lambda: bool(driver.java()))
    (java,) = driver.java()
    with standing_still(java):
        pass


def _stop_worker(run: KillTest, chance: Chance) -> None:
    driver = run.driver
    await_true("a Python worker", lambda: bool(driver.workers()))
    with standing_still(chance.choice(driver.workers())):
        pass


def _stop_executor(run: KillTest, chance: Chance) -> None:
    driver = run.driver
    await_true("an executor", lambda: bool(driver.executors()))
    with standing_still(chance.choice(driver.executors())):
        pass


def _stop_broker(run: KillTest, _: Chance) -> None:
    run.broker.signal(signal.SIGSTOP)
    try:
        time.sleep(2 * PATIENCE_SECONDS)
    finally:
        run.broker.signal(signal.SIGCONT)


STRIKES: Mapping[str, Strike] = {
    "SIGKILL driver": _kill_driver,
    "SIGKILL java": _kill_java,
    "SIGKILL worker": _kill_worker,
    "SIGKILL broker": _kill_broker,
    "SIGSTOP driver": _stop_driver,
    "SIGSTOP java": _stop_java,
    "SIGSTOP worker": _stop_worker,
    "SIGSTOP broker": _stop_broker,
}
ON_A_CLUSTER: Mapping[str, Strike] = {
    **STRIKES,
    "SIGKILL executor": _kill_executor,
    "SIGSTOP executor": _stop_executor,
}
#: A driver whose Java stands still keeps its lease there, so nobody takes over from it.
ON_ROCKETMQ: Mapping[str, Strike] = {**STRIKES, "SIGSTOP java": _pause_java}


def rounds(kinds: Collection[str], chance: Chance) -> Iterator[str]:
    """Give kinds of strikes for ever: each once in every round, in an order of chance."""
    while True:
        yield from chance.sample(sorted(kinds), len(kinds))


@dataclass
class Survived:
    """What a job has survived."""

    strikes: Counter[str] = field(default_factory=Counter)
    epochs: int = 0
    batches: int = 0
    records: int = 0
    looks: int = 0
    #: Messages on RocketMQ that are there again, with the tag by which readers drop them.
    repeats: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in sorted(self.strikes.items()))
        return (
            f"survived {self.strikes.total()} strikes in {self.seconds / 60:.1f} minutes ({kinds});"
            f" {self.batches} batches and {self.records} records in {self.epochs} epochs,"
            f" looked at {self.looks} times meanwhile and once after: nothing lost, nothing twice"
            f" ({self.repeats} late repetitions that readers drop)"
        )
