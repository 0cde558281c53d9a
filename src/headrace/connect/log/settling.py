"""What becomes of the copies of a worker that was lost for good."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from headrace.connect.lifecycle import Cause, Ending, Phase

if TYPE_CHECKING:
    from headrace.connect.log.entries import ConnectorEntry, UnitStory
    from headrace.connect.log.records import StatusSet
    from headrace.connect.log.view import ClusterView

__all__ = ["settle"]


def settle(view: ClusterView, workers: Collection[str], position: int) -> ClusterView:
    """Give the view in which nothing of these workers lives any more, by the record at a position.

    What failed stays failed; anything else may run again.

    Examples
    --------
    >>> from headrace.connect.log import ClusterView, ConnectorPut, StatusSet, fold
    >>> view, _ = fold(ClusterView(), ConnectorPut(request="a", name="orders", config={}), 0)
    >>> runs = StatusSet(connector="orders", generation=0, phase=Phase.RUNNING, worker="w1")
    >>> view, _ = fold(view, runs, 1)
    >>> [one.worker for one in view.alive()]
    ['w1']
    >>> list(settle(view, {"w1"}, 2).alive())
    []
    """
    entries = {name: _settled(entry, workers, position) for name, entry in view.entries.items()}
    return replace(view, entries=entries)


def _settled(entry: ConnectorEntry, workers: Collection[str], position: int) -> ConnectorEntry:
    if not any(status.worker in workers for status in entry.alive()):
        return entry
    return msgspec.structs.replace(
        entry,
        changed=position,
        story=_ended(entry.story, workers, position, entry.created),
        task_stories={
            task: _ended(story, workers, position, entry.created)
            for task, story in entry.task_stories.items()
        },
    )


def _ended(story: UnitStory, workers: Collection[str], position: int, since: int) -> UnitStory:
    for status in story.alive:
        if status.worker in workers:
            story = story.told(_end(status), position, since=since)
    return story


def _end(status: StatusSet) -> StatusSet:
    failed = status.phase is Phase.ERROR
    return msgspec.structs.replace(
        status,
        phase=Phase.ERROR if failed else Phase.NEW,
        cause=status.cause or Cause(f"worker '{status.worker}' was lost"),
        gone=True,
        ending=status.ending if failed else Ending.DIED,
        rungs=(),
    )
