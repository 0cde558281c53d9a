"""Files as users write them, for the tests of the command line."""

from __future__ import annotations

from pathlib import Path

WORD_COUNT = """
from headrace import StreamBuilder, serdes

builder = StreamBuilder("word-count")
(
    builder.source("lines", serdes.string)
    .flat_map_values(lambda line: line.split())
    .key_by(lambda word: word)
    .count()
    .to_stream()
    .sink("counts", serdes.json)
)
"""

SPOUTS_AND_BOLTS = """
from headrace import serdes
from headrace.transactions import Spout, TopicSink, TopicSpout, TransactionTopologyBuilder


class Numbers(Spout):
    def declare_output_fields(self, declarer):
        declarer.declare("number")

    def init_state(self, state):
        self.next = state or 0

    def next_tuple(self, collector):
        collector.emit([self.next])
        self.next += 1

    def finish_batch(self):
        return self.next


builder = TransactionTopologyBuilder("two")
builder.set_spout("numbers", Numbers())
builder.set_spout("lines", TopicSpout("lines", serdes.string))
builder.set_sink("out", TopicSink("out", serdes.json)).shuffle_grouping("numbers")
builder.set_sink("copies", TopicSink("copies", serdes.string)).shuffle_grouping("lines")
"""

BUILT = "topology = builder.build()\n"


def write(folder: Path, text: str, name: str = "program.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path
