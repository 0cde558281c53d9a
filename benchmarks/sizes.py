"""How much work each benchmark does: here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

__all__ = ["FULL", "QUEUES", "SMALL", "WORDS_PER_LINE", "Sizes"]

WORDS_PER_LINE = 5
#: Of every topic that a benchmark makes.
QUEUES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the workloads."""

    #: Words to count from topic to topic.
    words: int
    #: Different words: ``word_count_1k`` and ``word_count_200k``.
    few_words: int
    many_words: int
    #: Most lines of a batch.
    batch_lines: int
    #: Batches in which workers start, code is compiled and caches fill; left out of the rate.
    warm_up_batches: int
    #: Events of the measures of operators, and keys that have state in ``state_10m``.
    events: int
    state_keys: int
    #: Lines per second, and how long; the seconds before them warm up.
    latency_rate: int
    latency_seconds: int
    latency_warm_up: int
    #: Words and events for RocketMQ Streams, and how long its start takes.
    peer_words: int
    peer_events: int
    peer_start: timedelta
    #: Lines of the Java producer, and lines in each of its batches.
    produced_lines: int
    produced_batch: int
    #: Requests of waiting senders, and how long they go on at most, seconds.
    sent_messages: int
    sent_seconds: int
    #: Commits of each of many jobs.
    commits_of_a_job: int
    #: Messages to pull, and bytes of each.
    pulled_messages: int
    pulled_size: int
    #: Messages that a broker held before it was started, and bytes of each.
    old_messages: int
    old_size: int
    #: Keys of the queue to compact, each in four versions.
    compacted_keys: int
    #: Bytes of the log of a store that is started, and of one that is recovered; and queues.
    store_bytes: int
    recovered_bytes: int
    many_queues: int
    #: Staged bytes of the unit beside which others append.
    unit_bytes: int
    #: Keys of the state to restore.
    restored_keys: int
    #: Windows of each kind that are opened and closed.
    closed_windows: int
    #: Records of one key that wait in a join.
    hot_records: int
    #: Batches of one record, and partitions of the jobs that take them.
    wide_batches: int
    widths: tuple[int, ...]
    #: Lines of the file that connectors move, and rows that they write to a database.
    connect_lines: int
    connect_orders: int
    #: Connectors that one worker runs.
    connectors: int
    #: Windows in which a task is watched beside stuck ones, and least seconds of each.
    stuck_windows: int
    stuck_seconds: int
    #: Sinks that are busy, and sinks that hang, beside a pipeline that is watched.
    busy_neighbours: int
    hung_neighbours: int
    #: Longest wait for any one step; a step that takes longer has failed.
    patience: timedelta


#: What the asked numbers are about.
FULL = Sizes(
    words=10_000_000,
    few_words=1_000,
    many_words=200_000,
    batch_lines=100_000,
    warm_up_batches=4,
    events=2_000_000,
    state_keys=10_000_000,
    latency_rate=100,
    latency_seconds=20,
    latency_warm_up=10,
    peer_words=50_000,
    peer_events=5_000,
    peer_start=timedelta(seconds=25),
    produced_lines=1_000_000,
    produced_batch=200,
    sent_messages=300_000,
    sent_seconds=8,
    commits_of_a_job=100,
    pulled_messages=10_000_000,
    pulled_size=100,
    old_messages=1_000_000,
    old_size=1024,
    compacted_keys=300_000,
    store_bytes=10_000_000_000,
    recovered_bytes=2_000_000_000,
    many_queues=10_000,
    unit_bytes=256 * 1024 * 1024,
    restored_keys=1_000_000,
    closed_windows=1_000_000,
    hot_records=100_000,
    wide_batches=5,
    widths=(8, 64, 256, 1024),
    connect_lines=2_000_000,
    connect_orders=500_000,
    connectors=100,
    stuck_windows=3,
    stuck_seconds=10,
    busy_neighbours=20,
    hung_neighbours=40,
    patience=timedelta(minutes=15),
)

#: Enough to see that every benchmark works; the numbers mean nothing.
SMALL = Sizes(
    words=60_000,
    few_words=100,
    many_words=2_000,
    batch_lines=2_000,
    warm_up_batches=2,
    events=12_000,
    state_keys=20_000,
    latency_rate=50,
    latency_seconds=1,
    latency_warm_up=1,
    peer_words=500,
    peer_events=500,
    peer_start=timedelta(seconds=25),
    produced_lines=10_000,
    produced_batch=200,
    sent_messages=2_000,
    sent_seconds=2,
    commits_of_a_job=3,
    pulled_messages=50_000,
    pulled_size=100,
    old_messages=20_000,
    old_size=1024,
    compacted_keys=5_000,
    store_bytes=2_000_000,
    recovered_bytes=2_000_000,
    many_queues=100,
    unit_bytes=20 * 1024 * 1024,
    restored_keys=10_000,
    closed_windows=2_000,
    hot_records=2_000,
    wide_batches=2,
    widths=(8,),
    connect_lines=20_000,
    connect_orders=5_000,
    connectors=3,
    stuck_windows=1,
    stuck_seconds=0,
    busy_neighbours=2,
    hung_neighbours=2,
    patience=timedelta(minutes=2),
)
