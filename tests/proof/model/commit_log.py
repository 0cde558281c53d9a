"""The commit topic on RocketMQ: its records, and what somebody who reads them in order concludes."""

from __future__ import annotations

from typing import NamedTuple

from tests.proof.model.embedded import Items, Mark


class Record(NamedTuple):
    """A record of the commit topic; opens and closes repeat the commit that they build on."""

    kind: str
    epoch: int
    driver: int
    mark: Mark = (0, 0, 0)
    begin: int = 0
    end: int = 0
    #: State as the task saw it, with its own changes.
    state: Items = ()
    #: How many appends of its driver have had no answer so far.
    doubts: int = 0
    #: One past the place of the newest record that counted for its sender.
    stands_on: int = 0
    #: Whether it is no record, and only has compaction take out older ones with its key.
    deletes: bool = False
    #: Its place in the topic.
    offset: int = 0

    @property
    def batch(self) -> int:
        return self.mark[1]

    @property
    def content(self) -> Record:
        return self._replace(doubts=0, stands_on=0, offset=0)


NOTHING = Record("commit", 0, 0)


class Judged(NamedTuple):
    """What somebody who reads the log holds to be valid."""

    epoch: int = 0
    driver: int = 0
    closed: bool = False
    #: The last commit, or the open that repeats it.
    last: Record = NOTHING
    commits: tuple[Record, ...] = ()
    next: int = 0
    #: One past the newest record that counts.
    stands_on: int = 0

    def says_the_same(self, commits: tuple[Record, ...]) -> bool:
        """Tell whether the last commit is that of others."""
        last, held = self.last, commits[-1] if commits else NOTHING
        return (last.mark, last.end, last.state) == (held.mark, held.end, held.state)


def judge(log: tuple[Record, ...], mutation: str = "") -> Judged:
    """Read the log in order: who has the job, and which commits count."""
    judged = Judged()
    known = -1
    if log and log[-1].offset >= len(log) and not mutation.startswith("what is left"):
        # Some are missing: only what others stand on is sure to lead to what counts.
        known = max(record.stands_on for record in log) - 1
    for record in log:
        if record.offset < known:
            continue
        if record.offset == known:
            judged = _begun(record)
        elif not record.deletes:
            hole = record.offset > judged.next
            after = _judged(judged, record, hole, mutation)
            counts = after is not judged
            judged = after._replace(stands_on=record.offset + 1) if counts else judged
        judged = judged._replace(next=record.offset + 1)
    return judged


def _begun(record: Record) -> Judged:
    """Begin with a record that is known to count."""
    return Judged(
        record.epoch,
        record.driver,
        record.kind == "close",
        record,
        (record,) if record.kind == "commit" else (),
        stands_on=record.offset + 1,
    )


def _judged(judged: Judged, record: Record, hole: bool, mutation: str) -> Judged:
    batch = judged.last.batch
    if record.kind == "open":
        # One that was written before the last commit came would take it back.
        builds = record.batch == batch or (hole and record.batch > batch)
        first = hole and not judged.next
        if first or (builds and record.epoch == judged.epoch + 1):
            return judged._replace(
                epoch=record.epoch, driver=record.driver, closed=False, last=record
            )
        return judged
    own = (record.epoch, record.driver) == (judged.epoch, judged.driver)
    if record.kind == "close":
        return judged._replace(closed=True) if own else judged
    own = own or mutation == "void commit of an older epoch taken for valid"
    follows = record.batch == batch + 1 or (hole and record.batch > batch)
    if mutation == "a late repetition of an older batch counts again":
        follows = True
    newer = hole and record.epoch > judged.epoch
    if newer or (own and follows and not judged.closed):
        epoch = max(record.epoch, judged.epoch)
        driver = record.driver if newer else judged.driver
        commits = (*judged.commits, record)
        return judged._replace(epoch=epoch, driver=driver, last=record, commits=commits)
    return judged
