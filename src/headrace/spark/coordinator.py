"""The coordinator: from the summaries of a batch to its commit.

Pure: blocks in, a :class:`~headrace.runtime.commit.transactions.BatchEnd` out.  It refuses a batch of which
a summary is missing or doubled, or that mixes attempts, so that nothing half-processed is ever committed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import JobFailedError, RollbackError
from headrace.protocol.transactions import lineage_with, stored_positions
from headrace.runtime.blocks import Block, BlockKind
from headrace.runtime.commit.transactions import BatchEnd
from headrace.runtime.control import Summary, place_of
from headrace.runtime.event_time.silence import committed_time
from headrace.runtime.standing import IN, OUT
from headrace.runtime.user_code.failures import raise_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from headrace.protocol.transactions import CommitRecord, Position, StateSummary

__all__ = ["assemble"]


def assemble(
    last: CommitRecord,
    epoch: int,
    blocks: Iterable[Block],
    stages: int,
    clock: int,
    elsewhere: Callable[[], Collection[str]] | None = None,
) -> tuple[BatchEnd, list[Summary]]:
    """Make the commit of a batch out of what its tasks report.

    Parameters
    ----------
    last
        The record that the batch builds on.
    epoch
        The driver's epoch.
    blocks
        Everything that came through to the driver.
    stages
        Number of stages of the topology.
    clock
        Wall clock, ms since 1970.
    elsewhere
        Gives the outside partitions that records of other jobs have, too; None: that is not known.

    Raises
    ------
    HeadraceError
        A task met a failure that no retry can mend.
    RollbackError
        The parts of the batch were not computed from one another.
    """
    summaries: list[Summary] = []
    for block in sorted(blocks, key=lambda block: block.kind is not BlockKind.FAILURE):
        if block.kind is BlockKind.FAILURE:
            raise_failure(block.payload)
        summaries.append(msgspec.json.decode(block.payload, type=Summary))
    ends = _check_complete(summaries, stages, last.partitions)
    _check_attempts(summaries, last.batch + 1)
    _check_tuples(summaries)
    batch = last.batch + 1
    record = msgspec.structs.replace(
        committed_time(last, summaries),
        kind="commit",
        epoch=epoch,
        batch=batch,
        offsets={**last.offsets, **ends},
        states=_carried_over(last.states, summaries),
        lineage=lineage_with(last.lineage, epoch, batch),
        timestamp=clock,
        counters=_added_up(last.counters, summaries),
        stored_positions=_moved(last, summaries, elsewhere),
    )
    parts = [summary.part for summary in summaries if summary.part.records]
    return BatchEnd(previous=last.batch, parts=parts, record=record), summaries


def _check_complete(summaries: list[Summary], stages: int, partitions: int) -> dict[str, int]:
    """Give the offsets where the batch ends, once every task has reported exactly once."""
    found = Counter((summary.part.stage, summary.part.partition) for summary in summaries)
    heads = [summary for summary in summaries if summary.ends is not None]
    splits = heads[0].splits if heads else 1
    expected = {(0, split) for split in range(splits)} | {
        (stage, partition) for stage in range(1, stages) for partition in range(partitions)
    }
    if set(found) != expected or any(count > 1 for count in found.values()) or len(heads) != 1:
        missing = sorted(expected - set(found))
        surplus = sorted(
            place for place, count in found.items() if count > 1 or place not in expected
        )
        raise JobFailedError(
            f"a batch came back incomplete: (stage, partition) missing {missing}, doubled or"
            f" unexpected {surplus}",
            hint="nothing of it was committed; please report this with the driver's log",
        )
    ends = heads[0].ends
    assert ends is not None
    return ends


def _check_attempts(summaries: list[Summary], batch: int) -> None:
    """Refuse a batch in which a task took other blocks than the attempts that count have made.

    Spark runs some tasks of a stage anew where it has lost what they made.  A task that calls
    chance or a clock then makes other blocks, and those who took the old ones do not run again.
    """
    made: dict[str, dict[int, int]] = defaultdict(dict)
    for summary in summaries:
        for place, count in summary.blocks_sent.items():
            made[place][summary.part.attempt] = count
    for summary in summaries:
        part = summary.part
        counted = made[place_of(part.stage, part.partition)]
        if summary.blocks_taken != counted:
            raise RollbackError(
                f"batch {batch} mixes attempts: partition {part.partition} of stage {part.stage}"
                f" took blocks of the attempts {_shown(summary.blocks_taken)}, and those that count"
                f" made {_shown(counted)}",
                hint="nothing of it was committed; Spark has lost what a task had made and ran it"
                " anew: look for executors that were lost",
                batch=batch,
            )


def _shown(blocks: dict[int, int]) -> str:
    found = ", ".join(f"{attempt} ({count})" for attempt, count in sorted(blocks.items()))
    return found or "none"


def _check_tuples(summaries: list[Summary]) -> None:
    """Refuse a batch in which a bolt took other tuples than were sent to it."""
    sent: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for summary in summaries:
        sent.update(summary.tuples_sent)
        taken.update(summary.tuples_taken)
    for place in sorted(name for name in {*sent, *taken} if sent[name] != taken[name]):
        bolt, _, port = place.rpartition(":")
        raise JobFailedError(
            f"bolt '{bolt}' took {taken[place]} tuples by its subscription {port}, and"
            f" {sent[place]} were sent",
            hint="nothing of the batch was committed; please report this with the driver's log",
        )


def _moved(
    last: CommitRecord,
    summaries: list[Summary],
    elsewhere: Callable[[], Collection[str]] | None,
) -> dict[str, Position] | str:
    """Give where the outside is read to, without partitions that are gone.

    That one is gone must be said where an older record of another job has it.
    """
    if not any(summary.positions for summary in summaries):
        return last.stored_positions
    moved = dict(last.positions)
    for summary in summaries:
        moved |= summary.positions
    gone = {name for name, position in moved.items() if position.offset is None}
    if gone and elsewhere is not None:
        gone -= set(elsewhere())
        moved = {name: position for name, position in moved.items() if name not in gone}
    return stored_positions(moved)


def _carried_over(last: list[StateSummary], summaries: list[Summary]) -> list[StateSummary]:
    states = {(state.store, state.partition): state for state in last}
    for summary in summaries:
        states.update({(state.store, state.partition): state for state in summary.states})
    return [states[place] for place in sorted(states)]


def _added_up(last: dict[str, int], summaries: list[Summary]) -> dict[str, int]:
    totals = Counter(last)
    for summary in summaries:
        totals.update(summary.counters)
        totals.update({f"{IN}:{name}": count for name, count in summary.records.items()})
        totals.update({f"{OUT}:{name}": count for name, count in summary.given.items()})
    return dict(totals)
