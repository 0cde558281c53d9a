"""The job of the enumeration on Spark: small, but it passes every failpoint that a job has.

Three rounds of input, each a single append and so a batch.  Between the second and the third the
job ends and starts again, and of its copies of the state one is lost and one is behind.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace import StreamBuilder, serdes
from headrace.client import Admin, Client, ClientSettings, Producer, PullConsumer
from headrace.errors import HeadraceError
from headrace.protocol.transactions import CommitReader, CommitRecord, commit_in
from headrace.topology import Topology
from tests.faults.harness import PATIENT, await_true
from tests.faults.verification import bodies_by_key, history_problems, messages_of

ROUNDS = 3
_RECORDS = 24
_WORDS = 8
_ONE_TRY = ClientSettings(retry_timeout=timedelta(0))
#: After so long nothing of a send that failed is still on its way.
_SETTLED = 1.0

Published = dict[str, Any]
"""All that a job has made: bodies in order, by topic and key, and what its last commit says."""


@dataclass(frozen=True, slots=True)
class Place:
    """A job, and the topics that only it reads and writes."""

    job: str

    @property
    def words(self) -> str:
        """What it reads: ``word number``."""
        return f"{self.job}-words"

    @property
    def passed(self) -> str:
        """What its first stage writes: each record once."""
        return f"{self.job}-passed"

    @property
    def counted(self) -> str:
        """What its second stage writes: one count per record."""
        return f"{self.job}-counted"

    def topology(self) -> Topology:
        """Make the job: each stage writes, and the second one has state."""
        builder = StreamBuilder(self.job)
        words = builder.source(self.words, serdes.string, name="read")
        by_word = words.key_by(lambda text: text.partition(" ")[0], name="by-word")
        by_word.sink(self.passed, serdes.string, name="write-passed")
        counts = by_word.count(name="counts", emit="each")
        counts.to_stream().sink(self.counted, serdes.json, name="write-counted")
        return builder.build()

    def make_topics(self, client: Client) -> None:
        """Make the topics, of one queue, so that a round arrives at once."""
        for topic in (self.words, self.passed, self.counted):
            Admin(client).create_topic(topic, queues=1)

    def feed(self, namesrv: str, number: int) -> None:
        """Send a round, once: whether it arrived is settled by a look, as nobody else writes."""
        records = range(number * _RECORDS, (number + 1) * _RECORDS)
        bodies = [f"word{record % _WORDS} {record}".encode() for record in records]
        with Client(namesrv, _ONE_TRY) as sender, Client(namesrv, PATIENT) as looker:
            (queue,) = looker.queues(self.words, for_="write")
            consumer = PullConsumer(looker)
            try:
                Producer(sender).send_columns(queue, pa.array(bodies, pa.binary()))
            except HeadraceError:
                time.sleep(_SETTLED)
                if consumer.end_offset(queue) < records.stop:
                    self.feed(namesrv, number)
            # A RocketMQ shows messages some time after it has confirmed them.
            await_true("a round", lambda: consumer.end_offset(queue) == records.stop)

    def harm_copies(self, data: Path) -> None:
        """Take one copy of the state away, and from another one the file of its last batch.

        So it is on a machine that has never had a partition, and on one that has run an attempt of
        a batch that did not count.
        """
        copies = data / "state" / self.job / "counts"
        shutil.rmtree(copies / "0")
        # Resident tasks have no such files.
        if (changes := copies / "1" / "changes").exists():
            shutil.rmtree(changes)

    def published(self, client: Client) -> Published:
        """Read all that the job has made."""
        found: Published = {
            topic.removeprefix(self.job): bodies_by_key(client, topic)
            for topic in (self.passed, self.counted)
        }
        log = CommitReader()
        for place, record in self._history(client).items():
            log.feed(place, record)
        assert log.record is not None, f"{self.job} has committed nothing"
        record = log.record
        found["last commit"] = {
            "batch": record.batch,
            "offsets": {each.removeprefix(self.job): at for each, at in record.offsets.items()},
            "state": sorted(
                (state.store, state.partition, state.count, state.checksum)
                for state in record.states
            ),
        }
        return found

    @staticmethod
    def differences(found: Published, wanted: Published) -> list[str]:
        """Tell in which topic, or in the last commit, a run differs from another one."""
        return [
            f"{what} differs from a run without faults: {found[what]} instead of {wanted[what]}"
            for what in wanted
            if found[what] != wanted[what]
        ]

    def problems(self, client: Client) -> list[str]:
        """List what no history of commits may have."""
        history = self._history(client)
        empty = set(range(max(history, default=0))) - history.keys()
        return list(history_problems(list(history.values()), list(history), empty))

    def _history(self, client: Client) -> dict[int, CommitRecord]:
        messages = messages_of(client, self.topology().commit_topic)
        found = ((each.queue_offset, commit_in(each)) for each in messages)
        return {place: record for place, record in found if record is not None}
