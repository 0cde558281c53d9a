"""Small commits of many jobs at one broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping

from benchmarks.clusters import embedded
from benchmarks.measures import Plan, benchmark
from headrace.client import Admin, AsyncClient, AsyncJobs, Client
from headrace.protocol.records import encode_records
from headrace.protocol.transactions import (
    CommitRequest,
    OpenRequest,
    StagedPart,
    StagedSection,
    encode_sections,
)
from headrace.topology.names import commit_topic

__all__ = ["many_jobs"]

_JOBS = 50
_PARTS = 2


@benchmark({"many_jobs_commits": "commits/s"})
def many_jobs(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Have fifty jobs commit at once, each batch with a few records in two parts."""
    for _ in range(plan.runs):
        with embedded() as (address, _folder):
            with Client(address) as client:
                Admin(client).create_topic("counts", queues=_PARTS)
                for number in range(_JOBS):
                    Admin(client).create_topic(commit_topic(_name(number)), queues=1)
            yield {"many_jobs_commits": asyncio.run(_rate(address, plan.sizes.commits_of_a_job))}


async def _rate(address: str, commits: int) -> float:
    async with AsyncClient(address) as client:
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number in range(_JOBS):
                tasks.create_task(_commit(client, _name(number), commits))
        return _JOBS * commits / (time.monotonic() - began)


async def _commit(client: AsyncClient, job: str, commits: int) -> None:
    topic = commit_topic(job)
    jobs = AsyncJobs(client, topic)
    record = (await jobs.open(OpenRequest(job=job, commit_topic=topic, driver="bench"))).record
    for batch in range(1, commits + 1):
        record = record.committed(record.epoch, batch)
        parts = [_part(partition) for partition in range(_PARTS)]
        await jobs.commit(
            CommitRequest(
                commit_topic=topic, group=job, previous=batch - 1, parts=parts, record=record
            )
        )


def _part(partition: int) -> StagedPart:
    bodies = [b"%d" % number for number in range(5)]
    records = encode_records("counts", partition, bodies, b"KEYS\x01word\x02")
    section = StagedSection("counts", partition, len(bodies), bytes(records.data))
    return StagedPart(
        stage=1,
        partition=partition,
        attempt=partition,
        chunks=0,
        records=len(bodies),
        sections=encode_sections([section]),
    )


def _name(number: int) -> str:
    return f"job-{number}"
