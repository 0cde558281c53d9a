"""Configuration by JStorm's keys."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import SettingsError
from headrace.transactions import Configuration, TransactionTopologyBuilder
from headrace.transactions.config import configuration_table
from tests.transactions.components import Count, Pass, Words

#: As JStorm has them.
KNOWN = {
    "transaction.exactly.once.mode": True,
    "transaction.schedule.batch.delay.ms": 1000,
    "tuple.num.per.batch": 50_000,
    "transaction.max.pending.batch": 2,
    "transaction.batch.snapshot.timeout": 120,
    "transaction.topology.reset": False,
    "topology.transaction.state.operator.class": None,
    "transaction.topology.state.retry.num": 5,
    "transaction.topology.state.retry.interval.ms": 100,
    "transaction.spout.init.retry.secs": 240,
    "transaction.schedule.thread.pool": 1,
    "key.range.num": 256,
    "topology.state.ttl.time.sec": -1,
}


def test_every_key_has_its_default() -> None:
    config = Configuration()
    assert {name: config[name] for name in KNOWN} == KNOWN


@pytest.mark.parametrize("name", sorted(Configuration()))
def test_every_default_may_be_given(name: str) -> None:
    default = Configuration()[name]
    assert Configuration({name: default})[name] == default


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("transaction.exactly.once.mode", "never", "give true or false"),
        (
            "transaction.max.pending.batch",
            0,
            "greater than or equal to 1.*\n.*without bound they cannot be rolled back",
        ),
        ("tuple.num.per.batch", 0, "greater than or equal to 1"),
        ("tuple.num.per.batch", True, "whole number"),
        ("transaction.schedule.batch.delay.ms", 1.5, "whole number"),
        ("transaction.schedule.batch.delay.ms", "0.5 ms", "give whole ms"),
        ("transaction.batch.snapshot.timeout", "0 s", "greater than or equal to 1"),
        ("transaction.batch.snapshot.timeout", "long", "a duration is a number and a unit"),
        ("topology.state.ttl.time.sec", 60, "should be -1"),
        ("poison.policy", "drop", "does not look like 'fail', 'skip' or 'topic:NAME'"),
        ("poison.policy", "topic:", "does not look like 'fail', 'skip' or 'topic:NAME'"),
        ("poison.max.rollbacks", -1, "greater than or equal to 0"),
    ],
)
def test_a_value_that_cannot_work_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=f"'{name}' is {value!r}: .*{message}"):
        TransactionTopologyBuilder("job", {name: value})


@pytest.mark.parametrize(
    ("name", "unit"),
    [("transaction.schedule.batch.delay.ms", 1000), ("transaction.batch.snapshot.timeout", 1)],
)
def test_a_time_is_a_number_or_a_duration(name: str, unit: int) -> None:
    for value in (90 * unit, f"{90 * unit}", "90 s", "1m30s", timedelta(seconds=90)):
        assert Configuration({name: value})[name] == 90 * unit


def test_an_unknown_key_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"did you mean 'transaction.max.pending.batch'"):
        Configuration({"transaction.max.pending.batches": 2})
    with pytest.raises(SettingsError, match=r"There are transaction.exactly.once.mode"):
        Configuration({"zzz": 2})


def test_what_changes_nothing_is_named_with_the_reason() -> None:
    builder = TransactionTopologyBuilder(
        "job", {"transaction.max.pending.batch": 3, "tuple.num.per.batch": 5}
    )
    builder.set_spout("spout", Words())
    builder.set_bolt("count", Count()).fields_grouping("spout", "word")
    built = builder.build()
    assert built.config.ignored == {
        "transaction.max.pending.batch": "a group has one batch at a time"
    }
    text = built.describe()
    assert "transaction.max.pending.batch = 3 (changes nothing: a group has one batch" in text
    assert "tuple.num.per.batch = 5\n" in text


def test_poison_tuples_go_where_the_configuration_says() -> None:
    builder = TransactionTopologyBuilder("job", {"poison.policy": "topic:bad"})
    builder.set_spout("spout", Words())
    builder.set_bolt("pass", Pass()).shuffle_grouping("spout")
    (topology,) = builder.build().groups
    assert topology.operator("pass").on_error == "topic:bad"
    assert topology.dead_letter_topics == ["bad"]


def test_the_page_has_the_table_of_keys() -> None:
    page = Path(__file__).parents[2] / "docs" / "guides" / "build" / "topologies.md"
    assert configuration_table() in page.read_text(), "print(configuration_table()) has the new one"
