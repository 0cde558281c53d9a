"""The job that the fault tests run: every word counted twice over, into two topics.

``latest`` gets the newest count of each word per batch, ``each`` one count per occurrence: a
result that is lost or published twice shows in both, and in the second one by itself.
"""

from __future__ import annotations

from headrace import StreamBuilder, serdes

LINES, LATEST, EACH = "lines", "latest", "each"

builder = StreamBuilder("kill-test")
words = (
    builder.source(LINES, serdes.string)
    .flat_map_values(lambda line: line.split())
    .key_by(lambda word: word)
)
words.count(name="count-latest").to_stream().sink(LATEST, serdes.json)
words.count(name="count-each", emit="each").to_stream().sink(EACH, serdes.json)
topology = builder.build()
