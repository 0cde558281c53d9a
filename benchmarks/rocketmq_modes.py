"""Each guarantee on a real RocketMQ: what waiting for the commit, and writing twice, costs there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from benchmarks.clusters import real
from benchmarks.lines import send_lines
from benchmarks.measures import Plan, benchmark
from benchmarks.sizes import QUEUES, WORDS_PER_LINE, Sizes
from benchmarks.unguarded import unguarded
from benchmarks.word_count import commits, counted_words, job_settings, word_count
from headrace import StreamBuilder, Topology, serdes
from headrace.client import Admin, Client, PullConsumer
from headrace.settings import Guarantee
from headrace.spark import StreamJob

__all__ = ["copy_modes", "word_count_modes"]

_MODES = ("exactly_once", "at_least_once", "at_most_once")

_Make = Callable[[str, str], Topology]


@benchmark({f"rocketmq_{mode}": "words/s" for mode in _MODES}, peers=True)
def word_count_modes(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Count words: much input, little output."""

    def make(job: str, target: str) -> Topology:
        return word_count(job, "lines", target)

    def check(client: Client, target: str) -> int:
        return counted_words(client, target)

    yield from _measured(plan, make, check, "rocketmq_{}", WORDS_PER_LINE)


@benchmark({f"rocketmq_copy_{mode}": "records/s" for mode in _MODES}, peers=True)
def copy_modes(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Copy a topic: every record of it is written, and with exactly once twice."""

    def make(job: str, target: str) -> Topology:
        builder = StreamBuilder(job)
        lines = builder.source("lines", serdes.string)
        lines.map_values(lambda line: line.upper()).sink(target, serdes.string)
        return builder.build()

    def check(client: Client, target: str) -> int:
        ends = PullConsumer(client).end_offsets(client.queues(target))
        return sum(ends.values()) * WORDS_PER_LINE

    yield from _measured(plan, make, check, "rocketmq_copy_{}", 1)


def _measured(
    plan: Plan,
    make: _Make,
    check: Callable[[Client, str], int],
    measure: str,
    per_line: int,
) -> Iterator[Mapping[str, float]]:
    """Run the same job in every mode, in turn, over the same lines."""
    sizes = plan.sizes
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        real() as address,
        Client(address) as client,
    ):
        send_lines(client, "lines", sizes.words // WORDS_PER_LINE, sizes.few_words)
        for run in range(plan.runs):
            found: dict[str, float] = {}
            for mode in _MODES:
                target = f"{mode}-{run}"
                Admin(client).create_topic(target, queues=QUEUES)
                topology = make(f"job-{target}", target)
                guarantee: Guarantee = "exactly_once" if mode == "exactly_once" else "at_least_once"
                settings = replace(job_settings(address, Path(folder), sizes), guarantee=guarantee)
                with (
                    unguarded() if mode == "at_most_once" else nullcontext(),
                    StreamJob(topology, settings).start() as job,
                ):
                    job.await_caught_up(sizes.patience)
                counted = check(client, target)
                assert counted == sizes.words, f"{counted} of {sizes.words} words are there"
                found[measure.format(mode)] = _rate(client, topology, sizes, per_line)
            yield found


def _rate(client: Client, topology: Topology, sizes: Sizes, per_line: int) -> float:
    """Records per second from the commit that ends the warm-up to the last one."""
    records = commits(client, topology)
    first, last = records[sizes.warm_up_batches - 1], records[-1]
    lines = last.counters["records_in"] - first.counters["records_in"]
    return lines * per_line / ((last.timestamp - first.timestamp) / 1000)
