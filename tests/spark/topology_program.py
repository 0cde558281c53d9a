"""A topology for ``headrace run``: counts words of the topic that the environment names."""

from __future__ import annotations

import os

from headrace import serdes
from headrace.transactions import TopicSink, TopicSpout, TransactionTopologyBuilder
from tests.transactions.components import KeyCount

NAME, LINES, COUNTS = "TOPOLOGY_NAME", "TOPOLOGY_LINES", "TOPOLOGY_COUNTS"


def build(name: str, lines: str, counts: str) -> TransactionTopologyBuilder:
    """Count the words of one topic, each count to another one."""
    builder = TransactionTopologyBuilder(name)
    builder.set_spout("lines", TopicSpout(lines, serdes.string, fields=["word"]))
    builder.set_bolt("count", KeyCount(), 2).fields_grouping("lines", "word")
    sink = TopicSink(counts, serdes.json, key_field="word")
    builder.set_sink("out", sink).fields_grouping("count", "word")
    return builder


if NAME in os.environ:
    topology = build(os.environ[NAME], os.environ[LINES], os.environ[COUNTS])
