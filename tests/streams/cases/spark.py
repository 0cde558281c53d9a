"""Runs cases on Spark, on a broker of their own: all of them in one job for each way to cut.

A job takes seconds to start and some tenths of a second for a batch, whatever the batch holds.
So every case is a part of one topology, with topics of its own, and all of them go on side by
side: batch *n* of the job is batch *n* of every case.  Where such a job fails, its halves run.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

from headrace import StreamBuilder, serdes
from headrace.client import Client
from headrace.embedded import embedded_broker
from headrace.runtime.testing import TestInput
from headrace.runtime.testing.topics import Sent, Written
from headrace.settings import JobSettings
from headrace.spark import SparkReplay
from tests.streams.cases.comparing import Result, compare_steps, compare_totals
from tests.streams.cases.executions import KEYED, Row, cuts, moment, queues_of, result_of
from tests.streams.cases.pipelines import Built, build

__all__ = ["run_on_spark"]

_ROOT = Path(__file__).parents[3]
_numbers = count(1)

Batches = Sequence[Sequence[Row]]


def run_on_spark(cases: Sequence[Row]) -> Iterator[Exception | None]:
    """Run cases one record a batch, as one batch, and cut at random; tell what was wrong of each.

    Gives for each case what failed: an AssertionError when something else came out, or when the
    case asks for what is not known here.
    """
    failures: list[Exception | None] = [_unknown(case) for case in cases]
    for cut in _CUTS:
        left = [number for number, failure in enumerate(failures) if failure is None]
        found = _run([cases[number] for number in left], cut)
        for number, failure in zip(left, found, strict=True):
            failures[number] = failure
    yield from failures


@dataclass(frozen=True, slots=True)
class _Cut:
    """A way to cut input into batches, and how many partitions then share it."""

    name: str
    partitions: int

    def batches(self, case: Row) -> Batches:
        """Cut the input of a case."""
        if self.name == "each":
            return [[row] for row in case["input"]]
        return [case["input"]] if self.name == "one" else list(cuts(case))[1][1]

    def compare(self, case: Row, built: Built, steps: Sequence[list[Result]]) -> None:
        """Compare what came out with what must; one partition keeps the order across keys."""
        if self.name == "each":
            compare_steps(case, steps, values=built.values)
        else:
            results = [result for step in steps for result in step]
            compare_totals(case, results, values=built.values, updates=built.updates)


_CUTS = (_Cut("each", partitions=1), _Cut("one", partitions=2), _Cut("random", partitions=2))


@dataclass(frozen=True, slots=True)
class _Home:
    """A broker and its folder."""

    folder: Path
    address: str


@cache
def _home() -> _Home:
    # Workers import what cases are made of; they get their path when Spark starts.
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    opened = ExitStack()
    atexit.register(opened.close)
    folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="headrace-cases-")))
    address = opened.enter_context(embedded_broker(folder))
    return _Home(folder, address)


def _unknown(case: Row) -> Exception | None:
    """Tell what keeps a case from becoming a topology."""
    try:
        assert build(case, "case").topology.sources, "reads nothing"
    except Exception as error:
        return error
    return None


def _run(cases: Sequence[Row], cut: _Cut) -> list[Exception | None]:
    if not cases:
        return []
    try:
        ran = _run_job(cases, cut)
    except Exception as error:
        if len(cases) == 1:
            return [error]
        half = len(cases) // 2
        return _run(cases[:half], cut) + _run(cases[half:], cut)
    return [_wrong(case, cut, *found) for case, found in zip(cases, ran, strict=True)]


def _wrong(case: Row, cut: _Cut, built: Built, steps: list[list[Result]]) -> Exception | None:
    try:
        cut.compare(case, built, steps)
    except AssertionError as error:
        return AssertionError(f"{_TOLD[cut.name]}: {error}")
    return None


_TOLD = {"each": "one record a batch", "one": "as one batch", "random": "cut at random"}


def _run_job(cases: Sequence[Row], cut: _Cut) -> list[tuple[Built, list[list[Result]]]]:
    """Run cases side by side; give the results of each, batch by batch."""
    builder = StreamBuilder(f"cases-{next(_numbers)}")
    # Names of state topics are made of those of streams: these leave room for them.
    parts = [build(case, f"case-{next(_numbers)}", builder) for case in cases]
    steps: list[list[list[Result]]] = [[] for _ in cases]
    with _replaying(parts, cases, cut.partitions) as replay:
        replay.start()
        for batch in zip_longest(*map(cut.batches, cases), fillvalue=()):
            pairs = list(zip(parts, batch, strict=True))
            replay.send([message for built, rows in pairs for message in _sent(built, rows)])
            replay.await_done()
            written = replay.read()
            for built, rows, found in zip(parts, batch, steps, strict=True):
                results = _results(written, built)
                # What comes after a case has ended must not be: it is seen as of the last record.
                if rows:
                    found.append(results)
                elif results:
                    found[-1] += results
    return list(zip(parts, steps, strict=True))


@contextmanager
def _replaying(
    parts: Sequence[Built], cases: Sequence[Row], partitions: int
) -> Iterator[SparkReplay]:
    home = _home()
    settings = JobSettings(
        namesrv=home.address, data_dir=home.folder, partitions=partitions, master="local[2,4]"
    )
    queues: dict[str, int] = {}
    for built, case in zip(parts, cases, strict=True):
        queues |= queues_of(built, case["input"])
    with (
        Client(home.address) as client,
        SparkReplay(client, parts[-1].topology, settings, queues, sink_queues=1) as replay,
    ):
        yield replay


def _sent(built: Built, rows: Sequence[Row]) -> list[Sent]:
    sent: list[Sent] = []
    for row in rows:
        topic, queue = built.inputs[row["stream"]], row.get("partition") or 0
        way: TestInput[Any] = TestInput(topic, serdes.json, queue, sent.extend, datetime.now)
        way.send(row["value"], key=row["key"], time=moment(row))
    return sent


def _results(written: Mapping[str, Sequence[Written]], built: Built) -> list[Result]:
    return [
        result_of(output, message.read(KEYED), built.gaps.get(output))
        for output, topic in built.outputs.items()
        for message in written.get(topic, ())
    ]
