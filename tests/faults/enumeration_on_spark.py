"""Enumeration of crashes on Spark: a run counts its failpoints, then each is deadly in a run once.

Every run is a job of its own, on topics of its own, on one broker and as long as it lives in one
Spark session.  What it publishes must be what the run without faults has published.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.client import Client
from headrace.failpoints import ENVIRONMENT_VARIABLE, arm_in_folder, read_hits
from tests.faults.broker import Broker, kept_running, running_broker
from tests.faults.enumerated_job import ROUNDS, Place, Published
from tests.faults.enumeration import Hit
from tests.faults.harness import PATIENT
from tests.faults.spark_hosts import Hosting, Order, SparkHosts
from tests.without import going_without

_SETTINGS: Mapping[str, Any] = {"partitions": 2, "master": "local[2,4]"}


@dataclass(frozen=True, slots=True, order=True)
class SparkHit(Hit):
    """A hit, and by what kind of process: driver, planner, worker, broker."""

    kind: str


class SparkEnumeration:
    """Any number of runs of one small job.

    Parameters
    ----------
    folder
        Everything of the test.
    rocketmq
        Address of a RocketMQ, which has no failpoints; without it there is an embedded broker,
        which has.
    settings
        More settings of the job.
    """

    def __init__(
        self, folder: Path, rocketmq: str = "", settings: Mapping[str, Any] | None = None
    ) -> None:
        self._folder = folder
        self._points = folder / "points", folder / "broker-points"
        for each in self._points:
            each.mkdir()
        self._runs = 0
        with ExitStack() as opened:
            self._broker = None if rocketmq else opened.enter_context(self._own_broker())
            self._address = self._broker.address if self._broker else rocketmq
            self._client = opened.enter_context(Client(self._address, PATIENT))
            given = {**_SETTINGS, **(settings or {}), "namesrv": self._address}
            self._hosts = SparkHosts(Hosting(given, self._points[0], folder))
            opened.callback(self._hosts.close)
            #: What the run without faults passes, and what it publishes.
            self.hits, self.published = self._fault_free()
            self._opened = opened.pop_all()
        #: Processes that were killed, by kind, and how long that took, with the run around it.
        self.deaths: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def _own_broker(self) -> AbstractContextManager[Broker]:
        environment = {ENVIRONMENT_VARIABLE: f"folder:{self._points[1]}"}
        return running_broker(self._folder / "broker", environment=environment)

    def _fault_free(self) -> tuple[list[SparkHit], Published]:
        before = self._count()
        place = self._new_job()
        assert self._run(place) == 0
        assert place.problems(self._client) == []
        hits = [
            SparkHit(name, number + 1 - before[name], kind)
            for folder in self._points
            for name, kinds in read_hits(folder).items()
            for number, kind in enumerate(kinds)
            if number >= before[name]
        ]
        return sorted(hits), place.published(self._client)

    def survives(self, *hits: SparkHit, without: str = "") -> list[str]:
        """Run a job in which each process dies that makes one of the hits; list what is wrong.

        ``without`` names safeguards that broker or drivers go without, so that something is wrong.
        """
        began = time.monotonic()
        place = self._new_job()
        wanted = {hit.name: self._count()[hit.name] + hit.number for hit in hits}
        self._arm(wanted)
        with self._broker_without(without), kept_running(self._broker) as kills:
            deaths = self._run(place, "" if self._broker else without)
        self._arm({})
        kinds = Counter(hit.kind for hit in hits)
        problems = [
            f"{name} was hit {count - wanted[name]} times too few"
            for name, count in self._count().items()
            if name in wanted and count < wanted[name]
        ]
        if (deaths, len(kills)) != (kinds["driver"], kinds["broker"]):
            problems.append(f"{deaths} drivers and {len(kills)} brokers died")
        problems += place.differences(place.published(self._client), self.published)
        self.deaths += kinds
        for kind in kinds:
            self.seconds[kind] += time.monotonic() - began
        return problems + place.problems(self._client)

    def _run(self, place: Place, without: str = "") -> int:
        """Run a job over all rounds; how many drivers died."""
        data = self._folder / place.job
        place.make_topics(self._client)
        deaths = 0
        for number in range(ROUNDS):
            if number == ROUNDS - 1:
                deaths += self._hosts.obey(Order())
                place.harm_copies(data)
            place.feed(self._address, number)
            deaths += self._hosts.obey(Order(place, data, without))
        deaths += self._hosts.obey(Order())
        shutil.rmtree(data)
        return deaths

    def _new_job(self) -> Place:
        self._runs += 1
        return Place(f"enumerated{os.getpid()}-{self._runs}")

    def _count(self) -> Counter[str]:
        return Counter(
            {
                name: len(kinds)
                for folder in self._points
                for name, kinds in read_hits(folder).items()
            }
        )

    def _arm(self, wanted: Mapping[str, int]) -> None:
        text = ",".join(f"{name}=kill:{number}" for name, number in wanted.items())
        for folder in self._points:
            arm_in_folder(folder, text)

    @contextmanager
    def _broker_without(self, without: str) -> Iterator[None]:
        """Let the broker go without safeguards for a while."""
        if self._broker is None or not without:
            yield
            return
        for words in (without, ""):
            self._broker.kill()
            self._broker.restart(going_without(words))
            if words:
                yield

    def close(self) -> None:
        """End everything."""
        self._opened.close()
