"""What the configuration of a topology says about failures reaches its jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace import serdes
from headrace import transactions as tx
from headrace.settings import JobSettings
from headrace.spark.transactions import settings_of


class Nothing(tx.Spout):
    def declare_output_fields(self, declarer: Any) -> None:
        declarer.declare("number")

    def init_state(self, state: Any) -> None:
        pass

    def finish_batch(self) -> None:
        pass

    def next_tuple(self, collector: Any) -> None:
        collector.emit_barrier()


def settings_with(config: dict[str, Any]) -> JobSettings:
    builder = tx.TransactionTopologyBuilder("job", config=config)
    builder.set_spout("spout", Nothing())
    sink = tx.TopicSink("numbers", serdes.json)
    builder.set_sink("out", sink).shuffle_grouping("spout")
    given = JobSettings(batch_timeout=timedelta(seconds=7), rollback_retries=2)
    return settings_of(builder.build(), given)


@pytest.mark.parametrize(
    ("config", "timeout", "retries"),
    [
        ({}, 7, 2),
        ({"transaction.batch.snapshot.timeout": 30}, 30, 2),
        ({"poison.max.rollbacks": 9}, 7, 9),
        ({"poison.max.rollbacks": 0}, 7, 0),
    ],
)
def test_keys_that_are_given_win_over_settings(
    config: dict[str, Any], timeout: int, retries: int
) -> None:
    settings = settings_with(config)
    assert settings.batch_timeout == timedelta(seconds=timeout)
    assert settings.rollback_retries == retries
