"""Java senders that each wait for their answer, side by side, into our broker and a real one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.clusters import embedded, java_command, java_rate, real
from benchmarks.measures import Plan, benchmark
from benchmarks.sizes import QUEUES, Sizes
from headrace.client import Admin, Client

__all__ = ["ASYNC", "DURABLE", "DURABLE_BATCH", "Senders", "durable", "send_async", "sent"]

_UNIT = "messages/s"


@dataclass(frozen=True, slots=True)
class Senders:
    """Programs that each wait for an answer before they send the next request."""

    count: int
    #: Bytes of a message.
    size: int
    per_request: int


ASYNC = Senders(32, 100, 1)
DURABLE = Senders(64, 1024, 1)
DURABLE_BATCH = Senders(64, 1024, 16)


@benchmark({"send_async_java_ours": _UNIT, "send_async_java_real": _UNIT})
def send_async(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Send one message a request, to brokers that flush to disk asynchronously."""
    with ExitStack() as opened:
        ours = opened.enter_context(embedded("--flush", "async"))[0]
        theirs = opened.enter_context(real())
        for run in range(plan.runs):
            yield {
                "send_async_java_ours": sent(ours, f"sent-{run}", ASYNC, plan.sizes),
                "send_async_java_real": sent(theirs, f"sent-{run}", ASYNC, plan.sizes),
            }


@benchmark(
    {
        "durable_ours": _UNIT,
        "durable_real": _UNIT,
        "durable_batch_ours": _UNIT,
        "durable_batch_real": _UNIT,
    }
)
def durable(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Send to brokers that have each message on disk before they answer."""
    with ExitStack() as opened:
        ours = opened.enter_context(embedded("--flush", "sync"))[0]
        theirs = opened.enter_context(real("flushDiskType=SYNC_FLUSH"))
        for run in range(plan.runs):
            yield {
                "durable_ours": sent(ours, f"one-{run}", DURABLE, plan.sizes),
                "durable_real": sent(theirs, f"one-{run}", DURABLE, plan.sizes),
                "durable_batch_ours": sent(ours, f"batch-{run}", DURABLE_BATCH, plan.sizes),
                "durable_batch_real": sent(theirs, f"batch-{run}", DURABLE_BATCH, plan.sizes),
            }


def sent(address: str, topic: str, senders: Senders, sizes: Sizes) -> float:
    """Make a topic and have Java send to it; messages/s."""
    with Client(address) as client:
        Admin(client).create_topic(topic, queues=QUEUES)
    command = java_command(
        "java",
        "Send.java",
        address,
        topic,
        str(sizes.sent_messages * senders.per_request),
        str(senders.count),
        str(senders.size),
        str(senders.per_request),
        str(sizes.sent_seconds),
    )
    return java_rate(command, sizes.patience)[1]
