"""The job that is simulated: every record goes out as it is, and counted by its key.

Records of one key are dropped, so that there are batches without output.
"""

from __future__ import annotations

from headrace import StreamBuilder, serdes

LINES, IDS, COUNTS = "lines", "ids", "counts"
QUEUES = 2
KEYS, DROPPED = "abxx", "x"

builder = StreamBuilder("simulated")
lines = builder.source(LINES, serdes.string).filter(lambda line: line[0] != DROPPED)
lines.sink(IDS, serdes.string)
keyed = lines.key_by(lambda line: line[0])
keyed.count(name="count", emit="each").to_stream().sink(COUNTS, serdes.json)
topology = builder.build()
