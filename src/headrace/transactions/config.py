"""The configuration of a transactional topology, by JStorm's keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from headrace.errors import TopologyError
from headrace.spelling import did_you_mean


@dataclass(frozen=True, slots=True)
class ComponentConfigKey:
    """A key: what it does, what it may be, and its default."""

    name: str
    doc: str
    #: Returns what is wrong with a value; None where nothing is.
    problem: Callable[[Any], str | None]
    _: KW_ONLY
    default: Any
    #: Why a value changes nothing; empty where it does something.
    ignored: str = ""


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be True or False"


def _at_least(minimum: int, more: str = "") -> Callable[[Any], str | None]:
    def problem(value: Any) -> str | None:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if whole and value >= minimum:
            return None
        return f"must be a whole number, at least {minimum}{more}"

    return problem


def _any(value: Any) -> str | None:
    del value
    return None


def _no_ttl(value: Any) -> str | None:
    if value == -1 and not isinstance(value, bool):
        return None
    return (
        "must be -1: state of spouts and bolts lives until the program removes it; states with a"
        " time to live are those of `process` (docs/guides/build/processors.md)"
    )


def _poison(value: Any) -> str | None:
    if value in ("fail", "skip") or (
        isinstance(value, str) and value.startswith("topic:") and value[6:]
    ):
        return None
    return "must be 'fail', 'skip' or 'topic:NAME'"


_SHUFFLE = "no batch begins before the one before it is done, so no tuple comes early"
_ALL: tuple[ComponentConfigKey, ...] = (
    ComponentConfigKey(
        "transaction.exactly.once.mode",
        (
            "Exactly once; False is at least once, with the same program. "
            "Where it is given, it wins over the setting `guarantee`."
        ),
        _flag,
        default=True,
    ),
    ComponentConfigKey(
        "transaction.schedule.batch.delay.ms",
        "Pause after a batch in which no spout emitted.",
        _at_least(1),
        default=1000,
    ),
    ComponentConfigKey(
        "tuple.num.per.batch",
        (
            "Most tuples of a spout's task in a batch, unless it emits a barrier; "
            "where it is given, also most records of a batch that topics bring."
        ),
        _at_least(1),
        default=50_000,
    ),
    ComponentConfigKey(
        "transaction.batch.snapshot.timeout",
        (
            "A batch that takes longer, in seconds, is rolled back. "
            "Where it is given, it wins over the setting `batch_timeout`."
        ),
        _at_least(1),
        default=120,
    ),
    ComponentConfigKey(
        "transaction.topology.reset",
        "Each start drops offsets and state, also that of a driver which `headrace run` puts in the "
        "place of one that died: for one start, not to stay.",
        _flag,
        default=False,
    ),
    ComponentConfigKey(
        "key.range.num",
        "Key ranges of a key-value bolt; belongs to its state.",
        _at_least(1),
        default=256,
    ),
    ComponentConfigKey(
        "poison.policy",
        (
            "What becomes of a tuple on which a bolt raises: its batch is rolled back, until the "
            "group stops (`fail`); the tuple is left out (`skip`); or its message goes to a topic in "
            "the same transaction (`topic:NAME`)."
        ),
        _poison,
        default="fail",
    ),
    ComponentConfigKey(
        "poison.max.rollbacks",
        (
            "Roll-backs without a commit in between, before the group stops. "
            "Where it is given, it wins over the setting `rollback_retries`."
        ),
        _at_least(0),
        default=5,
    ),
    ComponentConfigKey(
        "topology.fall.back.on.pickle",
        (
            "Whether what spouts and bolts keep, and what a `JournalSpout` emits, may be any object: "
            "what is not plain data is pickled and signed (docs/guides/operate/security.md). False"
            " refuses it."
        ),
        _flag,
        default=False,
    ),
    ComponentConfigKey(
        "topology.state.ttl.time.sec",
        "Time to live of keyed state.",
        _no_ttl,
        default=-1,
    ),
    ComponentConfigKey(
        "transaction.max.pending.batch",
        "Batches that are not committed yet.",
        _at_least(1, ": batches without bound cannot be rolled back"),
        default=2,
        ignored="a group has one batch at a time",
    ),
    ComponentConfigKey(
        "topology.transaction.state.operator.class",
        "Where snapshots are kept.",
        _any,
        default=None,
        ignored="snapshots are always kept, in the commit topic and the state topics",
    ),
    ComponentConfigKey(
        "transaction.topology.state.retry.num",
        "Attempts to store a snapshot.",
        _at_least(0),
        default=5,
        ignored="the setting `retry_timeout` says how long requests are tried again",
    ),
    ComponentConfigKey(
        "transaction.topology.state.retry.interval.ms",
        "Pause between them.",
        _at_least(0),
        default=100,
        ignored="the setting `retry_timeout` says how long requests are tried again",
    ),
    ComponentConfigKey(
        "transaction.spout.init.retry.secs",
        "When a spout asks for its state again.",
        _at_least(0),
        default=240,
        ignored="a spout has its state with the first batch",
    ),
    ComponentConfigKey(
        "transaction.schedule.thread.pool",
        "Threads that end batches.",
        _at_least(0),
        default=1,
        ignored="no thread ends batches",
    ),
    ComponentConfigKey(
        "transaction.exactly.cache.type",
        "Early tuples.",
        _any,
        default="default",
        ignored=_SHUFFLE,
    ),
    ComponentConfigKey(
        "transaction.cache.batch.flush.size",
        "Early tuples.",
        _any,
        default=65_536,
        ignored=_SHUFFLE,
    ),
    ComponentConfigKey(
        "transaction.cache.block.size",
        "Early tuples.",
        _any,
        default=134_217_728,
        ignored=_SHUFFLE,
    ),
    ComponentConfigKey(
        "transaction.max.cache.block.num",
        "Early tuples.",
        _any,
        default=2,
        ignored=_SHUFFLE,
    ),
    ComponentConfigKey(
        "topology.acker.executors",
        "Tasks that count acks.",
        _any,
        default=0,
        ignored="there is no acker",
    ),
    ComponentConfigKey(
        "task.batch.tuple",
        "Tuples travel in batches.",
        _any,
        default=True,
        ignored="tuples always travel so",
    ),
)

CONFIG_KEYS: Mapping[str, ComponentConfigKey] = {key.name: key for key in _ALL}
"""Every key that a topology takes, by its name."""


class Configuration(Mapping[str, Any]):
    """A topology's configuration: what was given, and the defaults of the rest.

    Parameters
    ----------
    given
        Values by key.

    Raises
    ------
    TopologyError
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
    headrace.errors.TopologyError: unknown configuration key 'transaction.exactly.once'
      → did you mean 'transaction.exactly.once.mode'?
    """

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self.given = dict(given or {})
        for name, value in self.given.items():
            _check(name, value)
        self._values = {key.name: self.given.get(key.name, key.default) for key in _ALL}

    @property
    def ignored(self) -> dict[str, str]:
        """The given keys that change nothing, each with the reason."""
        reasons = {name: CONFIG_KEYS[name].ignored for name in self.given}
        return {name: reason for name, reason in reasons.items() if reason}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Configuration({self.given!r})"


def _check(name: str, value: Any) -> None:
    key = CONFIG_KEYS.get(name)
    if key is None:
        raise TopologyError(
            f"unknown configuration key {name!r}",
            hint=did_you_mean(name, CONFIG_KEYS, f"known are {', '.join(CONFIG_KEYS)}"),
        )
    problem = key.problem(value)
    if problem is not None:
        raise TopologyError(f"configuration key '{name}' is {value!r}: it {problem}")


def configuration_table() -> str:
    """Write the keys as a table, for ``docs/guides/build/topologies.md``."""
    lines = ["| key | default | meaning |", "| --- | --- | --- |"]
    for key in _ALL:
        meaning = (
            f"{key.doc} Accepted, and changes nothing: {key.ignored}." if key.ignored else key.doc
        )
        lines.append(f"| `{key.name}` | `{key.default}` | {meaning} |")
    return "\n".join(lines) + "\n"
