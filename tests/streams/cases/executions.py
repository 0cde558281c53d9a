"""Runs a case in the test driver: one record a batch, all in one batch, and cut at random."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zlib import crc32

from headrace import TopologyTestDriver, serdes
from headrace.runtime import TestRecord
from headrace.serdes import TableDeserializer
from tests.streams.cases.comparing import Result, compare_steps, compare_totals
from tests.streams.cases.pipelines import Built, build

__all__ = ["KEYED", "cuts", "moment", "queues_of", "result_of", "run_on_driver"]

Row = Mapping[str, Any]

#: Reads results; an empty body is that of a key that was deleted.
KEYED = TableDeserializer(serdes.as_deserializer(serdes.with_key(serdes.json, of=object)))
_EPOCH = datetime.fromtimestamp(0, UTC)


def run_on_driver(case: Row) -> None:
    """Run a case; everything that the case says must come out of every execution.

    Raises
    ------
    AssertionError
        Something else came out, or the case asks for what is not known here.
    """
    built = build(case, "case")
    rows = case["input"]
    # One partition: then the order of results across keys is that of the records.
    steps, driver = _run(built, rows, [[row] for row in rows], partitions=1)
    compare_steps(case, steps, values=built.values)
    dropped = case.get("params", {}).get("dropped_metric")
    counted = driver.counters.get("null_keys", 0)
    assert dropped in (None, counted), f"dropped are {counted}, not {dropped}"
    for partitions, batches in [(1, [rows]), (2, [rows]), *cuts(case)]:
        steps, _ = _run(built, rows, batches, partitions)
        results = [result for step in steps for result in step]
        compare_totals(case, results, values=built.values, updates=built.updates)


def cuts(case: Row, count: int = 3) -> Iterator[tuple[int, list[Sequence[Row]]]]:
    """Cut the input at random, the same in every run: partitions, and batches."""
    chance = random.Random(crc32(case["name"].encode()))
    rows = case["input"]
    for partitions in range(1, count + 1):
        size = chance.randint(0, max(0, len(rows) - 1))
        edges = sorted(chance.sample(range(1, len(rows)), size)) if size else []
        ends = zip([0, *edges], [*edges, len(rows)], strict=True)
        yield partitions, [rows[begin:end] for begin, end in ends]


def queues_of(built: Built, rows: Sequence[Row]) -> dict[str, int]:
    """Say how many queues each topic needs."""
    return {
        topic: 1
        + max([row.get("partition") or 0 for row in rows if row["stream"] == stream] or [0])
        for stream, topic in built.inputs.items()
    }


def moment(row: Row) -> datetime:
    """Give the time of a row."""
    return _EPOCH + timedelta(milliseconds=row["time"])


def result_of(output: str, record: TestRecord[Any, Any], gap: int | None) -> Result:
    """Read a result of an output."""
    edges = [record.headers.get(f"window_{edge}_time") for edge in ("start", "end")]
    window = None if None in edges else (int(edges[0] or 0), int(edges[1] or 0))
    if window is not None and gap is not None:
        # The file ends a session at its last event.
        window = (window[0], window[1] - gap)
    time = (record.time - _EPOCH) // timedelta(milliseconds=1)
    return Result(output, record.key, record.value, time, window)


def _run(
    built: Built, rows: Sequence[Row], batches: Sequence[Sequence[Row]], partitions: int
) -> tuple[list[list[Result]], TopologyTestDriver]:
    queues = queues_of(built, rows)
    with TopologyTestDriver(built.topology, partitions=partitions, queues=queues) as driver:
        steps = []
        for batch in batches:
            with driver.batch():
                for row in batch:
                    topic, queue = built.inputs[row["stream"]], row.get("partition") or 0
                    driver.input(topic, serdes.json, queue=queue).send(
                        row["value"], key=row["key"], time=moment(row)
                    )
            steps.append(list(_results(driver, built)))
    return steps, driver


def _results(driver: TopologyTestDriver, built: Built) -> Iterator[Result]:
    for output, topic in built.outputs.items():
        for record in driver.output(topic, KEYED).read_all():
            yield result_of(output, record, built.gaps.get(output))
