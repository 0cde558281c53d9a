"""Rows of a topic to objects in a bucket, exactly once, by a worker of Connect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson

from benchmarks.clusters import embedded
from benchmarks.connect_files import assert_numbers
from benchmarks.connect_postgres import orders
from benchmarks.connect_worker import rate_of, running_connect
from benchmarks.lines import spread
from benchmarks.measures import Plan, benchmark
from benchmarks.sizes import QUEUES
from headrace.client import Admin, Client
from tests.connect.servers.s3 import S3Bucket, running_s3

__all__ = ["connect_s3"]

_TOPIC = "deliveries"
#: Seconds between two looks into a bucket, which ask the storage for its list.
_LOOK = 0.1


@benchmark({"connect_s3_sink": "rows/s"})
def connect_s3(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Write JSON of five fields as lines of objects; one task."""
    sizes = plan.sizes
    with embedded() as (address, folder), Client(address) as client, running_s3() as storage:
        Admin(client).create_topic(_TOPIC, queues=QUEUES)
        spread(client, _TOPIC, orders(sizes.connect_lines))
        with running_connect(address, folder / "worker", sizes.patience) as worker:
            for run in range(plan.runs):
                bucket = storage.bucket()
                config = {
                    "connector.class": "files-sink",
                    "topics": _TOPIC,
                    "format": "jsonl",
                    "compression": "none",
                    "value.converter": "json",
                    "value.converter.schemas.enable": "false",
                    **bucket.config,
                }
                rows = _ObjectRows(bucket)
                with worker.connector(f"to-s3-{run}", config):
                    rate = rate_of(rows.count, sizes.connect_lines, worker, look=_LOOK)
                rows.assert_all_once(sizes.connect_lines)
                yield {"connect_s3_sink": rate}


class _ObjectRows:
    """The lines of all objects of a bucket, each object read once."""

    def __init__(self, bucket: S3Bucket) -> None:
        self._bucket = bucket
        self._lines: dict[str, list[bytes]] = {}

    def count(self) -> int:
        """Count the lines that are there by now."""
        for key in self._bucket.listed():
            if key not in self._lines and not key.startswith("_headrace/"):
                self._lines[key] = self._bucket.get(key).splitlines()
        return sum(map(len, self._lines.values()))

    def assert_all_once(self, count: int) -> None:
        """Make sure that each of so many orders is there, and none of them twice."""
        lines = (line for some in self._lines.values() for line in some)
        assert_numbers((orjson.loads(line)["id"] for line in lines), count, "orders")
