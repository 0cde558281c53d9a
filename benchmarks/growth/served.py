"""Java's senders, into a broker that holds so much already."""

from __future__ import annotations

from pathlib import Path

from benchmarks.produce import produced
from benchmarks.send import ASYNC, DURABLE, DURABLE_BATCH, sent
from benchmarks.sizes import Sizes
from headrace.broker import spawn_broker

__all__ = ["served"]


def served(data: Path, sizes: Sizes) -> dict[str, float]:
    """Measure a broker on a data folder, flushing asynchronously and to disk."""
    found = {}
    with spawn_broker(data, 0, options=("--flush", "async")) as broker:
        found["produce_java"] = produced(broker.address, "produced", sizes)
        found["send_async_java"] = sent(broker.address, "sent", ASYNC, sizes)
    with spawn_broker(data, 0, options=("--flush", "sync")) as broker:
        found["durable"] = sent(broker.address, "one", DURABLE, sizes)
        found["durable_batch"] = sent(broker.address, "batch", DURABLE_BATCH, sizes)
    return found
