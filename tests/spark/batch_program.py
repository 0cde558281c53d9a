"""A pipeline whose function writes down every call; run by ``headrace run`` in a kill test."""

from __future__ import annotations

import json
import os
from pathlib import Path

from headrace import BatchRecords, BatchToken, StreamBuilder, serdes

NOTES, TOPIC = "BATCH_NOTES", "BATCH_TOPIC"


def note(records: BatchRecords[None, str], token: BatchToken) -> None:
    """Append one line per call: token and values."""
    with Path(os.environ[NOTES]).open("a") as file:
        file.write(json.dumps([str(token), sorted(record.value for record in records)]) + "\n")


if TOPIC in os.environ:
    builder = StreamBuilder(f"noted-{os.environ[TOPIC]}")
    builder.source(os.environ[TOPIC], serdes.string).for_each_batch(note, name="note")
    topology = builder.build()
