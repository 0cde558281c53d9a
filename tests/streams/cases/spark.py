"""Runs a case on Spark, on a broker that all cases of this process share."""

from __future__ import annotations

import atexit
import os
import re
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from headrace import serdes
from headrace.client import Client
from headrace.embedded import embedded_broker
from headrace.runtime.testing import TestInput
from headrace.runtime.testing.topics import Sent
from headrace.settings import JobSettings
from headrace.spark import SparkReplay
from tests.streams.cases.comparing import Result, compare_steps, compare_totals
from tests.streams.cases.executions import Row, cuts, moment, queues_of, result_of
from tests.streams.cases.pipelines import Built, build

__all__ = ["run_on_spark"]

_ROOT = Path(__file__).parents[3]
_KEYED = serdes.as_deserializer(serdes.with_key(serdes.json, of=object))
_numbers = count(1)


def run_on_spark(case: Row) -> None:
    """Run a case one record a batch, as one batch, and cut at random.

    Raises
    ------
    AssertionError
        Something else came out, or the case asks for what is not known here.
    """
    rows = case["input"]
    built, steps = _run(case, [[row] for row in rows], partitions=1)
    compare_steps(case, steps, values=built.values)
    _, cut_at_random = list(cuts(case))[1]
    for batches in ([rows], cut_at_random):
        built, steps = _run(case, batches, partitions=2)
        results = [result for step in steps for result in step]
        compare_totals(case, results, values=built.values, updates=built.updates)


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


def _run(
    case: Row, batches: Sequence[Sequence[Row]], partitions: int
) -> tuple[Built, list[list[Result]]]:
    home = _home()
    built = build(case, f"{re.sub(r'[^a-zA-Z0-9]', '-', case['name'])}-{next(_numbers)}")
    settings = JobSettings(
        namesrv=home.address, data_dir=home.folder, partitions=partitions, master="local[2,4]"
    )
    steps: list[list[Result]] = []
    queues = queues_of(built, case["input"])
    with (
        Client(home.address) as client,
        SparkReplay(client, built.topology, settings, queues, sink_queues=1) as replay,
    ):
        replay.start()
        for batch in batches:
            replay.send(_sent(built, batch))
            replay.await_done()
            steps.append(_results(replay, built))
    return built, steps


def _sent(built: Built, batch: Sequence[Row]) -> list[Sent]:
    sent: list[Sent] = []
    for row in batch:
        topic, queue = built.inputs[row["stream"]], row.get("partition") or 0
        way: TestInput[Any] = TestInput(topic, serdes.json, queue, sent.extend, datetime.now)
        way.send(row["value"], key=row["key"], time=moment(row))
    return sent


def _results(replay: SparkReplay, built: Built) -> list[Result]:
    written = replay.read()
    return [
        result_of(output, message.read(_KEYED), built.params)
        for output, topic in built.outputs.items()
        for message in written[topic]
    ]
