"""The operators of the stream DSL from topic to topic, exactly once, on the embedded broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict

from benchmarks.clusters import embedded
from benchmarks.events import (
    EVENTS_PER_SECOND,
    add_events,
    random_keys,
    send_events,
    serial_keys,
)
from benchmarks.lines import send_lines
from benchmarks.measures import Plan, Runs, benchmark
from benchmarks.sizes import QUEUES, WORDS_PER_LINE, Sizes
from benchmarks.word_count import commits, job_settings
from benchmarks.workers import worker_memory
from headrace import Accumulator, StreamBuilder, Topology, count, hopping, serdes, sum_, tumbling
from headrace.client import Admin, Client, PullConsumer
from headrace.columns import col, explode
from headrace.protocol.transactions import CommitRecord
from headrace.spark import StreamJob

__all__ = ["PIPELINES", "WINDOW_KEYS", "map_lambda", "state_10m"]

_MANY_KEYS = 100_000
_FEW_KEYS = 10_000
WINDOW_KEYS = 10_000
_WINDOW = timedelta(seconds=10)
#: Event time from one event to the next.
_EVENT = timedelta(seconds=1) / EVENTS_PER_SECOND


class Event(TypedDict):
    """An event: a key and a small number."""

    k: str
    n: int


class Total(Accumulator[Event, int]):
    """Adds numbers up; without ``merge`` nothing is combined before the shuffle."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, value: Event) -> None:
        """Add one."""
        self.total += value["n"]

    def result(self) -> int:
        """Give the sum."""
        return self.total


def key(event: Event) -> str:
    """Give the key of an event."""
    return event["k"]


def number(event: Event) -> int:
    """Give the number of an event."""
    return event["n"]


def mapped(builder: StreamBuilder, sink: str) -> None:
    """Change every event by a lambda."""
    events = builder.source("events", serdes.json)
    events.map_values(lambda event: {**event, "n": event["n"] + 1}).sink(sink, serdes.json)


def aggregated(builder: StreamBuilder, sink: str) -> None:
    """Fold the events of a key in Python."""
    events = builder.source("events", serdes.json)
    events.key_by(key).aggregate(Total).sink(sink, serdes.json)


def tumbled(builder: StreamBuilder, sink: str) -> None:
    """Add up the events of a key and ten seconds."""
    events = builder.source("events", serdes.json)
    events.key_by(key).window(tumbling(_WINDOW)).sum(number).sink(sink, serdes.json)


def hopped(builder: StreamBuilder, sink: str) -> None:
    """Add up the events of a key and ten seconds, every two: five windows for each event."""
    windows = hopping(_WINDOW, _WINDOW / 5)
    events = builder.source("events", serdes.json)
    events.key_by(key).window(windows).sum(number).sink(sink, serdes.json)


def joined(builder: StreamBuilder, sink: str) -> None:
    """Join two streams whose events meet one another, each one."""
    left = builder.source("events", serdes.json).key_by(key)
    right = builder.source("others", serdes.json).key_by(key)
    pairs = left.join(right).within(timedelta(seconds=1))
    pairs.apply(lambda one, other: one["n"] + other["n"]).sink(sink, serdes.json)


def counted_words(builder: StreamBuilder, sink: str) -> None:
    """Count words by columns."""
    lines = builder.source("events", serdes.string)
    words = lines.select(word=explode(col("value").split(" ")))
    words.group_by("word").agg(n=count()).sink(sink, serdes.json)


def tumbled_columns(builder: StreamBuilder, sink: str) -> None:
    """Add up the events of a key and ten seconds by columns."""
    events = builder.source("events", serdes.json(Event))
    windows = events.group_by("k").window(tumbling(_WINDOW))
    windows.agg(n=sum_("n")).sink(sink, serdes.json)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What a measure runs."""

    build: Callable[[StreamBuilder, str], None]
    #: Different keys of the events; None: each has its own.
    keys: int | None
    #: A second topic of the same events is joined.
    both: bool = False
    #: The events are lines of words.
    words: bool = False


PIPELINES: Mapping[str, Pipeline] = {
    "map_lambda": Pipeline(mapped, _MANY_KEYS),
    "aggregate_python": Pipeline(aggregated, _MANY_KEYS),
    "window_tumbling": Pipeline(tumbled, WINDOW_KEYS),
    "window_hopping": Pipeline(hopped, WINDOW_KEYS),
    "join_interval": Pipeline(joined, None, both=True),
    "window_columns": Pipeline(tumbled_columns, WINDOW_KEYS),
    "word_count_columns": Pipeline(counted_words, None, words=True),
}


def topology(pipeline: Pipeline, name: str, sink: str) -> Topology:
    """Build a pipeline under a name."""
    builder = StreamBuilder(name)
    pipeline.build(builder, sink)
    return builder.build()


@benchmark({"map_lambda": "records/s"})
def map_lambda(plan: Plan) -> Runs:
    """Map by a lambda, topic to topic."""
    return _measured("map_lambda", plan)


@benchmark({"aggregate_python": "records/s"})
def aggregate_python(plan: Plan) -> Runs:
    """Aggregate in Python, without combining."""
    return _measured("aggregate_python", plan)


@benchmark({"window_tumbling": "records/s"})
def window_tumbling(plan: Plan) -> Runs:
    """Sum by key in tumbling windows."""
    return _measured("window_tumbling", plan)


@benchmark({"window_hopping": "records/s"})
def window_hopping(plan: Plan) -> Runs:
    """Sum by key in hopping windows, five for each record."""
    return _measured("window_hopping", plan)


@benchmark({"join_interval": "records/s"})
def join_interval(plan: Plan) -> Runs:
    """Join two streams with one match each."""
    return _measured("join_interval", plan)


@benchmark({"window_columns": "records/s"})
def window_columns(plan: Plan) -> Runs:
    """Sum by key in tumbling windows, by columns."""
    return _measured("window_columns", plan)


@benchmark({"word_count_columns": "words/s"})
def word_count_columns(plan: Plan) -> Runs:
    """Count the words of ``word_count_1k`` by columns."""
    return _measured("word_count_columns", plan)


@benchmark({"state_10m": "records/s", "state_10k": "records/s", "state_10m_memory": "MB"})
def state_10m(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Fold events of very many keys, each of which has state, and of few."""
    many = list(_kept("state_10m", plan.sizes.state_keys, plan))
    few = list(_kept("state_10k", _FEW_KEYS, plan))
    for (fast, memory), (slow, _) in zip(many, few, strict=True):
        yield {"state_10m": fast, "state_10k": slow, "state_10m_memory": memory}


def _kept(measure: str, different: int, plan: Plan) -> Iterator[tuple[float, float]]:
    """Give every key state, then run events of random keys; give their rate, and the memory."""
    sizes = plan.sizes
    with embedded() as (address, folder), Client(address) as client:
        filling = max(different, sizes.warm_up_batches * sizes.batch_lines)
        send_events(client, ["events"], (keys % different for keys in serial_keys(filling)))
        made = topology(Pipeline(aggregated, different), measure.replace("_", "-"), "out")
        Admin(client).create_topic("out", queues=QUEUES)
        with StreamJob(made, job_settings(address, folder, sizes)).start() as job:
            job.await_caught_up(sizes.patience)
            for run in range(plan.runs):
                held = job.statistics().records_in
                add_events(client, ["events"], random_keys(sizes.events, different, run))
                job.await_caught_up(sizes.patience)
                yield _rate(_since(commits(client, made), held), sizes), worker_memory()


def _measured(measure: str, plan: Plan) -> Iterator[Mapping[str, float]]:
    """Run the pipeline over the same events once per run, each time by a job of its own."""
    sizes, pipeline = plan.sizes, PIPELINES[measure]
    with embedded() as (address, folder), Client(address) as client:
        _send(client, pipeline, sizes)
        settings = job_settings(address, folder, sizes)
        for run in range(plan.runs):
            name, sink = f"{measure.replace('_', '-')}-{run}", f"out-{run}"
            made = topology(pipeline, name, sink)
            Admin(client).create_topic(sink, queues=QUEUES)
            with StreamJob(made, settings).start() as job:
                job.await_caught_up(sizes.patience)
            written = _written(client, sink)
            assert written >= _least(measure, sizes), f"{written} results of {measure}"
            factor = WORDS_PER_LINE if pipeline.words else 1
            yield {measure: factor * _rate(commits(client, made), sizes)}


def _send(client: Client, pipeline: Pipeline, sizes: Sizes) -> None:
    if pipeline.words:
        send_lines(client, "events", sizes.words // WORDS_PER_LINE, sizes.few_words)
        return
    events = sizes.events // 2 if pipeline.both else sizes.events
    given = pipeline.keys
    chunks = serial_keys(events) if given is None else random_keys(events, given)
    send_events(client, ["events", "others"] if pipeline.both else ["events"], chunks)


def _least(measure: str, sizes: Sizes) -> int:
    """Say how many results there must be: a fast job that loses some is worth nothing."""
    exact = {"map_lambda": sizes.events, "join_interval": sizes.events // 2}
    if measure.startswith("window_") and sizes.events < 2 * _WINDOW / _EVENT:
        # So few events end before their first window.
        return 0
    return exact.get(measure, 1)


def _rate(records: list[CommitRecord], sizes: Sizes) -> float:
    """Records per second from the commit that ends the warm-up to the last one."""
    first, last = records[min(sizes.warm_up_batches - 1, len(records) - 2)], records[-1]
    done = last.counters["records_in"] - first.counters["records_in"]
    return done / ((last.timestamp - first.timestamp) / 1000)


def _since(records: list[CommitRecord], filled: int) -> list[CommitRecord]:
    return [record for record in records if record.counters["records_in"] >= filled]


def _written(client: Client, topic: str) -> int:
    consumer = PullConsumer(client)
    return sum(consumer.end_offsets(client.queues(topic)).values())
