"""RocketMQ's own batch producer, into our broker and into a real one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from benchmarks.clusters import embedded, java_command, java_rate, real
from benchmarks.lines import await_stored
from benchmarks.measures import Plan, benchmark
from benchmarks.sizes import QUEUES, WORDS_PER_LINE, Sizes
from headrace.client import Admin, Client

__all__ = ["produce_java", "produced"]

_UNIT = "messages/s"


@benchmark(
    {
        "produce_java_ours": _UNIT,
        "produce_java_ours_sync": _UNIT,
        "produce_java_real": _UNIT,
    }
)
def produce_java(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Send lines in batches, in turn to brokers that flush as the real one does, and to disk."""
    with ExitStack() as opened:
        addresses = {
            # RocketMQ's default, and what the real one does here.
            "produce_java_ours": opened.enter_context(embedded("--flush", "async"))[0],
            "produce_java_ours_sync": opened.enter_context(embedded("--flush", "sync"))[0],
            "produce_java_real": opened.enter_context(real()),
        }
        for run in range(plan.runs):
            yield {
                name: produced(address, f"produced-{run}", plan.sizes)
                for name, address in addresses.items()
            }


def produced(address: str, topic: str, sizes: Sizes) -> float:
    """Make a topic and have Java's batch producer fill it; messages/s."""
    with Client(address) as client:
        Admin(client).create_topic(topic, queues=QUEUES)
        command = java_command(
            "java",
            "Produce.java",
            address,
            topic,
            str(sizes.produced_lines),
            str(WORDS_PER_LINE),
            str(sizes.few_words),
            str(sizes.produced_batch),
        )
        sent, rate = java_rate(command, sizes.patience)
        await_stored(client, topic, sizes.produced_lines, sizes.patience)
    assert sent == sizes.produced_lines
    return rate
