"""Counts the words of a topic of lines: ``headrace run examples/word_count.py``."""

from headrace import StreamBuilder, serdes

builder = StreamBuilder("word-count")
(
    builder.source("lines", serdes.string)
    .flat_map_values(lambda line: line.lower().split())
    .key_by(lambda word: word)
    .count()
    .sink("counts", serdes.json)
)
topology = builder.build()
