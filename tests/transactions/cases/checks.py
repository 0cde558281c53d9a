"""The invariants of the cases: each says what is wrong, and nothing when all is well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from tests.transactions import automaton
from tests.transactions.cases.evidence import Evidence

__all__ = ["INVARIANTS", "Check"]

Check = Callable[[Evidence], Iterable[str]]

_SHOWN = 5


def no_loss(evidence: Evidence) -> Iterator[str]:
    """I1: whatever the last commit has read is in the results."""
    if evidence.workload.sink and evidence.commits:
        read = {row["id"] for row in evidence.read_by(evidence.commits[-1])}
        lost = read - {row["id"] for row in evidence.results}
        if lost:
            yield f"I1: {len(lost)} ids are lost: {_some(lost)}"


def no_duplicate(evidence: Evidence) -> Iterator[str]:
    """I2: no result comes twice."""
    counts = Counter((row["id"], row.get("side")) for row in evidence.results)
    twice = [place for place, count in counts.items() if count > 1]
    if twice:
        yield f"I2: {len(twice)} results come more than once: {_some(twice)}"


def no_phantom(evidence: Evidence) -> Iterator[str]:
    """I3: no result is of anything that no commit has read."""
    if evidence.workload.sink:
        last = evidence.commits[-1:]
        read = {row["id"] for record in last for row in evidence.read_by(record)}
        strange = {row["id"] for row in evidence.results} - read
        if strange:
            yield f"I3: {len(strange)} results are of no commit: {_some(strange)}"


def state_fold(evidence: Evidence) -> Iterator[str]:
    """I4: the states of every commit are what the messages that it read make."""
    for record in evidence.commits:
        rows = evidence.read_by(record)
        for problem in evidence.workload.wrong_state(rows, evidence.states[record.batch]):
            yield f"I4: batch {record.batch}: {problem}"


def atomic_batch(evidence: Evidence) -> Iterator[str]:
    """I5: a commit counts as many results as the messages that it read make."""
    if not evidence.workload.sink:
        return
    sides = len({row.get("side") for row in evidence.results}) or 1
    for record in evidence.commits:
        wanted = sides * len(evidence.read_by(record))
        found = record.counters.get("records_out", 0)
        if found != wanted:
            yield f"I5: batch {record.batch} counts {found} results instead of {wanted}"


def pointer_monotonic(evidence: Evidence) -> Iterator[str]:
    """I6: batches rise by one, each committed once; epochs never fall."""
    batch = epoch = 0
    for record in evidence.commits:
        if record.batch != batch + 1:
            yield f"I6: batch {record.batch} follows batch {batch}"
        if record.epoch < epoch:
            yield f"I6: epoch {record.epoch} follows epoch {epoch}"
        batch, epoch = record.batch, record.epoch


def fencing(evidence: Evidence) -> Iterator[str]:
    """I7: nothing of an epoch counts once a higher one is open."""
    newest = 0
    for record in evidence.history:
        newest = max(newest, record.epoch)
        if record.epoch < newest:
            yield f"I7: epoch {record.epoch} committed batch {record.batch} after {newest} opened"


def callback_order(evidence: Evidence) -> Iterator[str]:
    """I9: each task's callbacks come in the order of R18."""
    last = evidence.commits[-1].batch if evidence.commits else 0
    yield from (f"I9: {problem}" for problem in automaton.judge(evidence.calls, last))


#: By the names that the file gives them; I8 is the time limit of the run.
INVARIANTS: Mapping[str, Check] = {
    "I1": no_loss,
    "I2": no_duplicate,
    "I3": no_phantom,
    "I4": state_fold,
    "I5": atomic_batch,
    "I6": pointer_monotonic,
    "I7": fencing,
    "I9": callback_order,
}


def _some(items: Iterable[object]) -> str:
    shown = sorted(map(str, items))
    return ", ".join(shown[:_SHOWN]) + (" ..." if len(shown) > _SHOWN else "")
