"""The configuration of a transactional topology, by JStorm's keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace._setting import DeclaredSettings, setting, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _ComponentKeys(DeclaredSettings):
    """Every key that a topology takes, with underscores for its dots."""

    VARIABLES = ""
    TOLD_AS = "configuration key '{}'"

    transaction_exactly_once_mode: bool = setting(
        default=True,
        doc="Exactly once; False is at least once, with the same program. Where it is given, it "
        "wins over the setting `guarantee`.",
    )
    transaction_schedule_batch_delay_ms: int = setting(
        1000,
        doc="Pause after a batch in which no spout emitted: milliseconds, or a duration such as "
        "`2 s`.",
        unit="ms",
        minimum=1,
    )
    tuple_num_per_batch: int = setting(
        50_000,
        doc="Most tuples of a spout's task in a batch, unless it emits a barrier; where it is "
        "given, also most records of a batch that topics bring.",
        minimum=1,
    )
    transaction_batch_snapshot_timeout: int = setting(
        120,
        doc="A batch that takes longer is rolled back: seconds, or a duration such as `5 min`. "
        "Where it is given, it wins over the setting `batch_timeout`.",
        unit="seconds",
        minimum=1,
    )
    transaction_topology_reset: bool = setting(
        default=False,
        doc="Each start drops offsets and state, also that of a driver which `headrace run` puts "
        "in the place of one that died: for one start, not to stay.",
    )
    key_range_num: int = setting(
        256, doc="Key ranges of a key-value bolt; belongs to its state.", minimum=1
    )
    poison_policy: str = setting(
        "fail",
        doc="What becomes of a tuple on which a bolt raises: its batch is rolled back, until the "
        "group stops (`fail`); the tuple is left out (`skip`); or its message goes to a topic in "
        "the same transaction (`topic:NAME`).",
        unit="'fail', 'skip' or 'topic:NAME'",
        pattern=r"fail|skip|topic:\S+",
    )
    poison_max_rollbacks: int = setting(
        5,
        doc="Roll-backs without a commit in between, before the group stops. Where it is given, "
        "it wins over the setting `rollback_retries`.",
    )
    topology_fall_back_on_pickle: bool = setting(
        default=False,
        doc="Whether what spouts and bolts keep, and what a `JournalSpout` emits, may be any "
        "object: what is not plain data is pickled and signed "
        "(docs/guides/operate/security.md). False refuses it.",
    )
    topology_state_ttl_time_sec: Literal[-1] = setting(
        -1,
        doc="Time to live of keyed state. State of spouts and bolts lives until the program "
        "removes it; states with a time to live are those of `process` "
        "(docs/guides/build/processors.md).",
        minimum=-1,
    )
    transaction_max_pending_batch: int = setting(
        2,
        doc="Batches that are not committed yet; without bound they cannot be rolled back.",
        minimum=1,
    )
    topology_transaction_state_operator_class: Any = setting(None, doc="Where snapshots are kept.")
    transaction_topology_state_retry_num: int = setting(5, doc="Attempts to store a snapshot.")
    transaction_topology_state_retry_interval_ms: int = setting(
        100, doc="Pause between them.", unit="ms"
    )
    transaction_spout_init_retry_secs: int = setting(
        240, doc="When a spout asks for its state again.", unit="seconds"
    )
    transaction_schedule_thread_pool: int = setting(1, doc="Threads that end batches.")
    transaction_exactly_cache_type: Any = setting("default", doc="Early tuples.")
    transaction_cache_batch_flush_size: Any = setting(65_536, doc="Early tuples.")
    transaction_cache_block_size: Any = setting(134_217_728, doc="Early tuples.")
    transaction_max_cache_block_num: Any = setting(2, doc="Early tuples.")
    topology_acker_executors: Any = setting(0, doc="Tasks that count acks.")
    task_batch_tuple: Any = setting(default=True, doc="Tuples travel in batches.")

    @classmethod
    def name_of(cls, field: str) -> str:
        """Return JStorm's name of a key."""
        return field.replace("_", ".")


_REQUESTS = "the setting `retry_timeout` says how long requests are tried again"
_SHUFFLE = "no batch begins before the one before it is done, so no tuple comes early"
#: Keys that change nothing, and why.
_IGNORED: Mapping[str, str] = {
    "transaction.max.pending.batch": "a group has one batch at a time",
    "topology.transaction.state.operator.class": (
        "snapshots are always kept, in the commit topic and the state topics"
    ),
    "transaction.topology.state.retry.num": _REQUESTS,
    "transaction.topology.state.retry.interval.ms": _REQUESTS,
    "transaction.spout.init.retry.secs": "a spout has its state with the first batch",
    "transaction.schedule.thread.pool": "no thread ends batches",
    "transaction.exactly.cache.type": _SHUFFLE,
    "transaction.cache.batch.flush.size": _SHUFFLE,
    "transaction.cache.block.size": _SHUFFLE,
    "transaction.max.cache.block.num": _SHUFFLE,
    "topology.acker.executors": "there is no acker",
    "task.batch.tuple": "tuples always travel so",
}


class Configuration(Mapping[str, Any]):
    """A topology's configuration: what was given, and the defaults of the rest.

    Parameters
    ----------
    given
        Values by key.

    Raises
    ------
    SettingsError
        If a key is unknown, or a value cannot work.

    Examples
    --------
    >>> config = Configuration({"tuple.num.per.batch": 100, "topology.acker.executors": 0})
    >>> config["tuple.num.per.batch"], config["transaction.exactly.once.mode"]
    (100, True)
    >>> config.ignored
    {'topology.acker.executors': 'there is no acker'}
    >>> Configuration({"transaction.exactly.once": True})
    Traceback (most recent call last):
    headrace.errors.SettingsError: There is no configuration key 'transaction.exactly.once'.
      → did you mean 'transaction.exactly.once.mode'?
    """

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self.given = dict(given or {})
        keys = _ComponentKeys.named(self.given)
        fields = [field.name for field in settings_of(_ComponentKeys)]
        self._values = {_ComponentKeys.name_of(field): getattr(keys, field) for field in fields}

    @property
    def ignored(self) -> dict[str, str]:
        """The given keys that change nothing, each with the reason."""
        return {name: _IGNORED[name] for name in self.given if name in _IGNORED}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Configuration({self.given!r})"


def configuration_table() -> str:
    """Write the keys as a table, for ``docs/guides/build/topologies.md``."""
    lines = ["| key | default | meaning |", "| --- | --- | --- |"]
    for field in settings_of(_ComponentKeys):
        name, meaning = _ComponentKeys.name_of(field.name), field.metadata["doc"]
        if name in _IGNORED:
            meaning += f" Accepted, and changes nothing: {_IGNORED[name]}."
        lines.append(f"| `{name}` | `{field.default}` | {meaning} |")
    return "\n".join(lines) + "\n"
