"""The job that proves exactly once: unique ids, sequences by key, and a bank, in one topology.

* **Ids**: every id comes once; each is counted, so a second occurrence says so by itself.
* **Sequences**: the numbers of a key come one by one; the operator keeps the last one and gives
  the step to it, which must be 1.
* **Bank**: a transfer takes from one account what it gives to another, in two operators with
  state of their own; after every commit both have moved the same.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from headrace import Accumulator, StreamBuilder, serdes
from headrace.streams import Stream
from headrace.topology import Topology

QUEUES = 4
ACCOUNTS = 100
DEBITS, CREDITS = "debits", "credits"


@dataclass(frozen=True, slots=True)
class Names:
    """Topics of a job: those that it reads, and those that it writes."""

    job: str
    #: First word of the names of the topics that it reads; the job's name, if not given.
    source: str = ""

    @property
    def ids(self) -> str:
        """Ids, each once."""
        return f"{self.source or self.job}-ids"

    @property
    def sequences(self) -> str:
        """``key:number``, in order by key."""
        return f"{self.source or self.job}-sequences"

    @property
    def transfers(self) -> str:
        """``from to amount``."""
        return f"{self.source or self.job}-transfers"

    @property
    def counted(self) -> str:
        """How often each id came, at each time."""
        return f"{self.job}-counted"

    @property
    def followed(self) -> str:
        """``number:step`` by key."""
        return f"{self.job}-followed"

    @property
    def moved(self) -> dict[str, str]:
        """What each account gave and took, by operator."""
        return {DEBITS: f"{self.job}-given", CREDITS: f"{self.job}-taken"}

    @property
    def sources(self) -> tuple[str, ...]:
        """Topics that the job reads."""
        return self.ids, self.sequences, self.transfers

    @property
    def sinks(self) -> tuple[str, ...]:
        """Topics that the job writes."""
        return self.counted, self.followed, *self.moved.values()


class Follow(Accumulator[str, str]):
    """Keeps the last number of a key and tells the step to it."""

    def __init__(self) -> None:
        self.last, self.step = 0, 0

    def add(self, value: str) -> None:
        """Take the next number."""
        number = int(value.partition(":")[2])
        self.last, self.step = number, number - self.last

    def result(self) -> str:
        """Give number and step."""
        return f"{self.last}:{self.step}"


def proof(names: Names) -> Topology:
    """Make the topology of a job with these names."""
    builder = StreamBuilder(names.job)
    prove(builder, names)
    return builder.build()


def prove(builder: StreamBuilder, names: Names) -> None:
    """Add all of the job to a topology."""
    ids = builder.source(names.ids, serdes.string, name="read-ids")
    counted = ids.key_by(lambda each: each, name="by-id").count(name="ids", emit="each")
    counted.to_stream().sink(names.counted, serdes.json, name="write-ids")
    numbers = builder.source(names.sequences, serdes.string, name="read-sequences")
    followed = numbers.key_by(lambda text: text.partition(":")[0], name="by-sequence").aggregate(
        Follow, name="sequences", emit="each"
    )
    followed.to_stream().sink(names.followed, serdes.json, name="write-sequences")
    transfers = builder.source(names.transfers, serdes.string, name="read-transfers")
    for place, operator in enumerate((DEBITS, CREDITS)):
        _move(transfers, place, operator, names.moved[operator])


def _move(transfers: Stream[Any, str], place: int, operator: str, topic: str) -> None:
    """Add up what each account moved, the accounts standing at one place of the transfers."""
    by_account = transfers.key_by(lambda text: text.split()[place], name=f"by-{operator}")
    moved = by_account.sum(lambda text: int(text.split()[2]), name=operator)
    moved.to_stream().sink(topic, serdes.json, name=f"write-{operator}")


topology = proof(Names(os.environ.get("PROOF_JOB", "proof")))
