"""The checker of spouts and bolts: in every commit the tally is what the spouts have emitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from headrace.client import Client, MessageQueue
from headrace.protocol.transactions import CommitRecord
from headrace.topology import Topology
from tests.faults.proof_bolts import IDS, SEQUENCES, TALLY, TICKS, TRANSFERS, tick_of
from tests.faults.proof_checks import BankChecker
from tests.faults.proof_feeder import Sent
from tests.faults.proof_followers import StateFollower
from tests.faults.proof_pipeline import Names


class TallyChecker:
    """In every commit record one bolt has counted each tuple of each spout once.

    Of topics there are as many as the record's offsets say; of the ticks as many as the state of
    their spout says, which is committed with it.

    Parameters
    ----------
    client, names, topology
        The job.
    bank
        Reads the commit topic.
    """

    def __init__(self, client: Client, names: Names, topology: Topology, bank: BankChecker) -> None:
        self._bank = bank
        self._checked = 0
        self._topics = {IDS: names.ids, SEQUENCES: names.sequences, TRANSFERS: names.transfers}
        self._states = {
            operator: StateFollower(client, topology, operator, by_tags=bank.journal)
            for operator in (TALLY, TICKS)
        }
        self._ticks = 0

    def look(self) -> list[str]:
        """Hold each commit that the bank has seen against the state as of it."""
        due = self._bank.history[self._checked :]
        self._checked += len(due)
        return [problem for record in due for problem in self._check(record)]

    def finish(self, sent: Sent) -> list[str]:
        """Hold the last commit against everything that was sent."""
        del sent
        found = self.look()
        return found if self._ticks else [*found, "nothing has ticked"]

    def _check(self, record: CommitRecord) -> Iterator[str]:
        where = f"{record.kind} of epoch {record.epoch}, batch {record.batch}"
        for state in self._states.values():
            yield from (f"{where}: {what}" for what in state.advance(record))
        counts = Counter(self._states[TALLY].values().get(0, {}))
        wanted = self._wanted(record)
        if counts != wanted:
            yield f"{where}: the tally is {dict(counts)} instead of {dict(wanted)}"

    def _wanted(self, record: CommitRecord) -> Counter[str]:
        wanted: Counter[str] = Counter()
        for name, end in record.offsets.items():
            topic = MessageQueue.parse(name).topic
            wanted.update({spout: end for spout, each in self._topics.items() if each == topic})
        ticks = {tick_of(task): number for task, number in self._states[TICKS].values().items()}
        self._ticks = sum(ticks.values())
        wanted.update(ticks)
        wanted[TICKS] = self._ticks
        return wanted
