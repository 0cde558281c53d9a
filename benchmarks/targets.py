"""What the measures are to reach on two cores, in the order in which they are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["RATIOS", "TARGETS", "Ratio", "Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """A bound that a measure is to keep."""

    kind: Literal["at least", "below"]
    bound: float

    def reached(self, value: float) -> bool:
        """Tell whether a measured value keeps the bound."""
        return value >= self.bound if self.kind == "at least" else value < self.bound


@dataclass(frozen=True, slots=True)
class Ratio:
    """A measure that divides two others of the same run."""

    numerator: str
    denominator: str

    @property
    def name(self) -> str:
        """Name of the measure.

        >>> Ratio("a", "b").name
        'a / b'
        """
        return f"{self.numerator} / {self.denominator}"


_FLOOR = Ratio("word_count_1k", "word_count_floor_1k")
_RESIDENT_1K = Ratio("resident_word_count_1k", "word_count_1k")
_RESIDENT_200K = Ratio("resident_word_count_200k", "word_count_200k")
_STREAMS = Ratio("word_count_1k", "rocketmq_streams_1k")
_STREAMS_WINDOW = Ratio("window_tumbling", "rocketmq_streams_window")
_PRODUCE = Ratio("produce_java_ours", "produce_java_real")
_PULL = Ratio("pull_ours", "pull_real")
_SEND = Ratio("send_async_java_ours", "send_async_java_real")
_DURABLE = Ratio("durable_ours", "durable_real")
_DURABLE_BATCH = Ratio("durable_batch_ours", "durable_batch_real")
_EXACTLY_ONCE = Ratio("mode_exactly_once", "mode_at_most_once")
_AT_LEAST_ONCE = Ratio("mode_at_least_once", "mode_at_most_once")
_ACKER = Ratio("mode_at_least_once", "mode_acker")
_MODES = Ratio("rocketmq_exactly_once", "rocketmq_at_most_once")
_COPY_MODES = Ratio("rocketmq_copy_exactly_once", "rocketmq_copy_at_most_once")
_CONNECT_SOURCE = Ratio("connect_file_source", "kafka_connect_file_source")
_CONNECT_SINK = Ratio("connect_file_sink", "kafka_connect_file_sink")
_CONNECT_KAFKA_SOURCE = Ratio("connect_kafka_source", "kafka_connect_mirror")
_CONNECT_KAFKA_SINK = Ratio("connect_kafka_sink", "kafka_connect_mirror")
_CONNECT_POSTGRES_SINK = Ratio("connect_postgres_sink", "debezium_jdbc_sink")
_CONNECT_SNAPSHOT = Ratio("connect_postgres_snapshot", "debezium_postgres_snapshot")
_CONNECT_CHANGES = Ratio("connect_postgres_changes", "debezium_postgres_changes")
_CONNECT_STUCK = Ratio("connect_beside_stuck", "connect_alone")

_COLUMNS = Ratio("word_count_columns", "word_count_1k")
_WINDOW_COLUMNS = Ratio("window_columns", "window_tumbling")
_MANY_KEYS = Ratio("state_10m", "state_10k")

RATIOS = [
    _RESIDENT_1K,
    _RESIDENT_200K,
    _COLUMNS,
    _WINDOW_COLUMNS,
    _MANY_KEYS,
    _FLOOR,
    _STREAMS,
    _STREAMS_WINDOW,
    _PRODUCE,
    _SEND,
    _DURABLE,
    _DURABLE_BATCH,
    _PULL,
    _EXACTLY_ONCE,
    _AT_LEAST_ONCE,
    _ACKER,
    _MODES,
    _COPY_MODES,
    _CONNECT_SOURCE,
    _CONNECT_SINK,
    _CONNECT_KAFKA_SOURCE,
    _CONNECT_KAFKA_SINK,
    _CONNECT_POSTGRES_SINK,
    _CONNECT_SNAPSHOT,
    _CONNECT_CHANGES,
    _CONNECT_STUCK,
]

#: Every measure; None: it is there for a ratio, or to be known.
TARGETS: dict[str, Target | None] = {
    "word_count_1k": Target("at least", 500_000),
    "word_count_200k": Target("at least", 200_000),
    "word_count_floor_1k": None,
    _FLOOR.name: Target("at least", 0.6),
    "resident_word_count_1k": None,
    _RESIDENT_1K.name: Target("at least", 2.0),
    "resident_word_count_200k": None,
    _RESIDENT_200K.name: Target("at least", 1.0),
    "map_lambda": Target("at least", 250_000),
    "aggregate_python": Target("at least", 120_000),
    "window_tumbling": Target("at least", 250_000),
    "window_hopping": Target("at least", 100_000),
    "join_interval": Target("at least", 80_000),
    "word_count_columns": None,
    _COLUMNS.name: Target("at least", 2.0),
    "window_columns": None,
    _WINDOW_COLUMNS.name: Target("at least", 2.0),
    "state_10m": None,
    "state_10k": None,
    _MANY_KEYS.name: Target("at least", 0.5),
    "state_10m_memory": Target("below", 1_000),
    "bolts_engine": Target("at least", 250_000),
    "bolts_key_value": None,
    "mode_at_most_once": None,
    "mode_at_least_once": None,
    "mode_exactly_once": None,
    "mode_acker": None,
    _EXACTLY_ONCE.name: Target("at least", 0.7),
    _AT_LEAST_ONCE.name: Target("at least", 0.9),
    _ACKER.name: None,
    "latency_p50": Target("below", 0.4),
    "latency_p99": Target("below", 1.0),
    "resident_latency_p50": Target("below", 0.02),
    "resident_latency_p99": Target("below", 0.06),
    "resident_latency_10k_p50": Target("below", 0.025),
    "resident_latency_10k_p99": Target("below", 0.08),
    "rocketmq_latency_p50": None,
    "rocketmq_resident_latency_p50": Target("below", 0.05),
    "many_jobs_commits": Target("at least", 800),
    "rocketmq_streams_1k": None,
    "rocketmq_streams_ours": None,
    _STREAMS.name: Target("at least", 300),
    "rocketmq_streams_window": None,
    _STREAMS_WINDOW.name: None,
    "rocketmq_exactly_once": None,
    "rocketmq_at_least_once": None,
    "rocketmq_at_most_once": None,
    _MODES.name: Target("at least", 0.45),
    "rocketmq_copy_exactly_once": None,
    "rocketmq_copy_at_least_once": None,
    "rocketmq_copy_at_most_once": None,
    _COPY_MODES.name: Target("at least", 0.45),
    "produce_java_ours": None,
    "produce_java_ours_sync": None,
    "produce_java_real": None,
    _PRODUCE.name: Target("at least", 1.0),
    "send_async_java_ours": None,
    "send_async_java_real": None,
    _SEND.name: Target("at least", 0.5),
    "durable_ours": Target("at least", 15_000),
    "durable_real": None,
    _DURABLE.name: Target("at least", 1.0),
    "durable_batch_ours": Target("at least", 50_000),
    "durable_batch_real": None,
    _DURABLE_BATCH.name: Target("at least", 1.0),
    "pull_ours": None,
    "pull_real": None,
    _PULL.name: Target("at least", 1.0),
    "pull_bytes": Target("at least", 300),
    "pull_columns": Target("at least", 1_000_000),
    "compaction_bytes": Target("at least", 500),
    "compaction_records": Target("at least", 500_000),
    "compaction_key_bytes": Target("below", 40),
    "recovery_bytes": Target("at least", 1_000),
    "start_10gb": Target("below", 2.0),
    "queues_10k_sends": None,
    "queues_10k_pulls": None,
    "queues_10k_start": Target("below", 2.0),
    "queues_10k_stop": None,
    "queues_10k_files": Target("below", 1_000),
    "restore": Target("at least", 200_000),
    "recovery_driver": Target("below", 25),
    "recovery_driver_standby": Target("below", 8),
    "rocketmq_recovery_driver": Target("below", 25),
    "rocketmq_recovery_driver_apart": Target("below", 75),
    "recovery_worker": Target("below", 5),
    "recovery_planner": Target("below", 5),
    "resident_recovery_worker": Target("below", 0.8),
    "resident_recovery_driver_standby": Target("below", 1.5),
    "growth_windows": Target("below", 1),
    "growth_windows_batch": None,
    "growth_open_step": None,
    "growth_hot_key": Target("below", 2),
    "growth_hot_key_batch": None,
    "append_beside_unit_p50": None,
    "append_beside_unit_p99": None,
    "append_beside_unit": Target("below", 0.25),
    "unit_beside_appends": None,
    "batch_of_one_8": None,
    "batch_of_one_64": None,
    "batch_of_one_256": None,
    "batch_of_one_1024": None,
    "batch_of_one_8_bytes": None,
    "batch_of_one_64_bytes": None,
    "batch_of_one_256_bytes": None,
    "batch_of_one_1024_bytes": Target("below", 1_000_000),
    "connect_file_source": Target("at least", 100_000),
    "connect_file_sink": None,
    "kafka_connect_file_source": None,
    "kafka_connect_file_sink": None,
    _CONNECT_SOURCE.name: Target("at least", 1.0),
    _CONNECT_SINK.name: Target("at least", 1.0),
    "connect_kafka_source": None,
    "connect_kafka_sink": None,
    "kafka_connect_mirror": None,
    _CONNECT_KAFKA_SOURCE.name: Target("at least", 1.0),
    _CONNECT_KAFKA_SINK.name: Target("at least", 1.0),
    "connect_postgres_sink": Target("at least", 20_000),
    "debezium_jdbc_sink": None,
    _CONNECT_POSTGRES_SINK.name: Target("at least", 1.0),
    "connect_postgres_snapshot": None,
    "connect_postgres_changes": None,
    "debezium_postgres_snapshot": None,
    "debezium_postgres_changes": None,
    _CONNECT_SNAPSHOT.name: Target("at least", 1.0),
    _CONNECT_CHANGES.name: Target("at least", 1.0),
    "connect_s3_sink": None,
    "connect_first_row": Target("below", 5),
    "connect_100_start": Target("below", 20),
    "connect_100_first_rows": None,
    "connect_100_memory": Target("below", 3_000),
    "connect_100_list": Target("below", 0.1),
    "connect_alone": None,
    "connect_beside_stuck": None,
    _CONNECT_STUCK.name: Target("at least", 0.9),
    "connect_stuck_list": Target("below", 0.5),
    "connect_pause_alone": None,
    "connect_pause_beside_busy": Target("below", 2),
    "connect_pause_beside_hung": Target("below", 3),
}
