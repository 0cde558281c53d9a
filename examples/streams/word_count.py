"""Counts words: every line gives an update for each of its words (RIP-58, "typical usage")."""

from __future__ import annotations

from examples.streams.running import Given, main
from headrace import StreamBuilder, serdes

builder = StreamBuilder("example-word-count")
(
    builder.source("lines", serdes.json)
    .flat_map_values(lambda line: line.lower().split())
    .key_by(lambda word: word)
    .count()
    .sink("counts", serdes.json)
)
topology = builder.build()

RECORDS = [Given("lines", "Hello world hello", 0), Given("lines", "World", 1)]

if __name__ == "__main__":
    main(topology, RECORDS)
