"""Planning: which files are written anew, which together, and which stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.store.compaction.marking import Candidate

__all__ = ["Step", "plan"]

#: A file that loses nothing joins a neighbour only if it is at most so many times as large: or
#: one large file would be copied for every small one that closes behind it.
_MAX_RATIO = 3


@dataclass(frozen=True, slots=True)
class Step:
    """Files that become one, or one that stays."""

    candidates: tuple[Candidate, ...]

    @property
    def kept_bytes(self) -> int:
        """Bytes that survive."""
        return sum(candidate.kept_bytes for candidate in self.candidates)

    @property
    def stays(self) -> bool:
        """Whether it is one file that loses nothing."""
        return len(self.candidates) == 1 and _is_whole(self.candidates[0])


def plan(candidates: Sequence[Candidate], file_size: int) -> list[Step]:
    """Group neighbours whose survivors fit into one file; files without survivors are left out."""
    steps: list[Step] = []
    for candidate in candidates:
        if not candidate.kept_count:
            continue
        if steps and _may_join(steps[-1], candidate, file_size):
            steps[-1] = Step((*steps[-1].candidates, candidate))
        else:
            steps.append(Step((candidate,)))
    return steps


def _may_join(step: Step, candidate: Candidate, file_size: int) -> bool:
    before, here = step.kept_bytes, candidate.kept_bytes
    if before + here > file_size:
        return False
    if step.stays and before > _MAX_RATIO * here:
        return False
    return not (_is_whole(candidate) and here > _MAX_RATIO * before)


def _is_whole(candidate: Candidate) -> bool:
    return candidate.kept_count == candidate.part.meta.count
