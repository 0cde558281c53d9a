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

BUILT = "topology = builder.build()\n"


def write(folder: Path, text: str, name: str = "program.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path
