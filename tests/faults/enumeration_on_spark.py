"""Enumeration of crashes on Spark: one job meets one death after the other, each at another place.

A Spark session takes seconds to start.  So the job goes on: it is fed a round, the process dies
that makes the armed hit, the job catches up, the checkers look, and the next hit is armed.  Only
the driver's own places cost a start of the driver.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from headrace.failpoints import ENVIRONMENT_VARIABLE, arm_in_folder, read_hits
from tests.faults.broker import running_broker
from tests.faults.enumeration import Hit
from tests.faults.harness import PATIENCE
from tests.faults.proof_job import Scene, proof_job

_ROUND_SECONDS = 10.0
_OTHERS_REPLACE = ("worker", "planner")
_AT_THE_START = ("job.before_open", "job.opened")


class SparkEnumeration:
    """A job on Spark that dies at one failpoint after the other.

    Parameters
    ----------
    scene
        The job.
    folder
        Everything of the test.
    points
        Folders in which the processes of the job, and the broker, count their hits.
    """

    def __init__(self, scene: Scene, folder: Path, points: tuple[Path, Path]) -> None:
        self._scene = scene
        self._run = scene.run
        self._state = folder / "job" / "state"
        self._points = points
        self._prepare: Mapping[str, Callable[[], None]] = {
            "state.replay": self._lose_state,
            "state.catch_up": self._fall_behind,
        }
        self._feeding = threading.Thread()
        self._restarts = 0
        self.deaths: Counter[str] = Counter()

    def hits(self) -> list[Hit]:
        """Count what a round without faults passes, also on state that is lost or behind."""
        self._round()
        found: Counter[str] = Counter()
        for prepare in (self._nothing, self._lose_state, self._fall_behind, self._leave):
            prepare()
            before = self._count()
            self._round()
            found |= self._count() - before
        return sorted(Hit(name, n + 1) for name, count in found.items() for n in range(count))

    def survives(self, hit: Hit) -> list[str]:
        """Let the process die that makes a hit, and the job catch up; list what is wrong then."""
        kind = hit.name.rpartition(".")[0]
        self._prepare.get(kind, self._nothing)()
        target = self._count()[hit.name] + hit.number
        for folder in self._points:
            arm_in_folder(folder, f"{hit.name}=kill:{target}")
        if hit.name in _AT_THE_START:
            self._leave()
        self._until_dead(hit.name, target)
        self._run.await_caught_up()
        for folder in self._points:
            arm_in_folder(folder, "")
        return self._scene.checkers.look()

    def _until_dead(self, name: str, target: int) -> None:
        """Feed the job until a hit was made; start what is to be started after it."""
        deadline = time.monotonic() + PATIENCE
        due = 0.0
        restarts = self._restarts
        while not (self._settled() and self._is_over(name, target, self._restarts - restarts)):
            assert time.monotonic() < deadline, f"{name} was not hit {target} times"
            if time.monotonic() > due and not self._feeding.is_alive():
                self._feed()
                due = time.monotonic() + _ROUND_SECONDS
            time.sleep(0.05)
        while self._feeding.is_alive():
            self._settled()
            self._feeding.join(0.05)
        self.deaths[name.partition(".")[0]] += 1

    def _is_over(self, name: str, target: int, restarts: int) -> bool:
        """Tell whether a hit was made, and whoever made it is dead and replaced."""
        kinds = [kind for folder in self._points for kind in read_hits(folder).get(name, ())]
        # Workers are replaced by Spark, planners by the driver.
        return len(kinds) >= target and (restarts > 0 or kinds[target - 1] in _OTHERS_REPLACE)

    def _settled(self) -> bool:
        """Start again what is dead; tell whether nothing was."""
        if not self._run.broker.runs():
            self._run.kill_broker()
        elif not self._run.driver.runs():
            self._run.start_driver()
        else:
            return True
        self._restarts += 1
        return False

    def _count(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for folder in self._points:
            found.update({name: len(kinds) for name, kinds in read_hits(folder).items()})
        return found

    def _feed(self) -> None:
        # In a thread: it waits for a broker that dies, and somebody has to start that again.
        self._feeding = threading.Thread(target=self._scene.feeder.feed)
        self._feeding.start()

    def _round(self) -> None:
        self._feed()
        self._feeding.join()
        self._run.await_caught_up()

    def _nothing(self) -> None:
        pass

    def _lose_state(self) -> None:
        """As on a machine that has never seen the job."""
        shutil.rmtree(self._state)

    def _fall_behind(self) -> None:
        """As on a machine that did not have the partitions for a batch."""
        older = self._state.with_name("older")
        shutil.copytree(self._state, older)
        self._round()
        shutil.rmtree(self._state)
        older.rename(self._state)

    def _leave(self) -> None:
        self._run.kill_driver()


@contextmanager
def enumeration_on_spark(
    folder: Path, options: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator[SparkEnumeration]:
    """A job on Spark that has done its first batches."""
    points = folder / "points", folder / "broker-points"
    for each in points:
        each.mkdir()
    of_job, of_broker = (f"folder:{each}" for each in points)
    broker = running_broker(folder / "broker", environment={ENVIRONMENT_VARIABLE: of_broker})
    with proof_job(folder, broker, options, environment, of_job) as scene:
        yield SparkEnumeration(scene, folder, points)
        scene.finish()
