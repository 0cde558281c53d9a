"""The job that the fault tests run: every word counted twice over, into two topics.

``latest`` gets the newest count of each word per batch, ``each`` one count per occurrence: a
result that is lost or published twice shows in both, and in the second one by itself.
"""

from __future__ import annotations

import os

from headrace import StreamBuilder, Topology, serdes

LINES, LATEST, EACH = "lines", "latest", "each"
#: Variable with the mark of the job that this file makes as a program.
MARK = "KILL_TEST_MARK"


def pipeline(mark: str = "") -> Topology:
    """Make the job; where several share a cluster, each has a mark on its name and its topics."""
    builder = StreamBuilder(f"kill-test{mark}")
    words = (
        builder.source(LINES + mark, serdes.string)
        .flat_map_values(lambda line: line.split())
        .key_by(lambda word: word)
    )
    words.count(name="count-latest").to_stream().sink(LATEST + mark, serdes.json)
    words.count(name="count-each", emit="each").to_stream().sink(EACH + mark, serdes.json)
    return builder.build()


topology = pipeline(os.environ.get(MARK, ""))
