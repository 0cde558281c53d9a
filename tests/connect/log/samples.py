"""Records to fill logs with, and hypothesis's ideas of them."""

from __future__ import annotations

from hypothesis import strategies as st

from headrace.connect.lifecycle import Cause, Ending, Phase, Target
from headrace.connect.log import (
    AssignmentMade,
    ClusterView,
    ConnectorDeleted,
    ConnectorPut,
    LeftoversGone,
    LevelSet,
    Outcome,
    Purged,
    Record,
    RestartAsked,
    StatusSet,
    TargetSet,
    TasksPut,
    TasksWanted,
    TopicsReset,
    TopicUsed,
    fold,
)

NAMES = ("a", "b")
WORKERS = ("w1", "w2")

_names = st.sampled_from(NAMES)
_workers = st.sampled_from(WORKERS)
_configs = st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from(["1", "2"]), max_size=2)
_requests = st.integers(0, 40).map(str)
_positions = st.integers(0, 12)
_tasks = st.one_of(st.none(), st.integers(0, 2))


def records() -> st.SearchStrategy[Record]:
    """Any record, many of them void."""
    return st.one_of(
        st.builds(
            ConnectorPut,
            request=_requests,
            name=_names,
            config=_configs,
            expected_version=st.sampled_from([None, 0, 1, 2]),
            target=st.sampled_from([None, *Target]),
        ),
        st.builds(ConnectorDeleted, request=_requests, name=_names, forget=st.booleans()),
        st.builds(LeftoversGone, name=_names, kept_as=st.lists(_names, max_size=2)),
        st.builds(TargetSet, request=_requests, name=_names, target=st.sampled_from(Target)),
        st.builds(
            TasksPut,
            name=_names,
            config_version=st.integers(1, 3),
            configs=st.lists(_configs, max_size=3),
            asked=_positions,
        ),
        st.builds(TasksWanted, name=_names),
        st.builds(
            RestartAsked,
            request=_requests,
            name=_names,
            connector=st.booleans(),
            tasks=st.one_of(st.sampled_from(["all", "failed"]), st.lists(st.integers(0, 2))),
            only_failed=st.booleans(),
        ),
        st.builds(
            StatusSet,
            connector=_names,
            task=_tasks,
            generation=_positions,
            phase=st.sampled_from(Phase),
            worker=_workers,
            gone=st.booleans(),
        ),
        st.builds(TopicUsed, name=_names, topic=st.sampled_from(["t1", "t2"])),
        st.builds(TopicsReset, request=_requests, name=_names),
        st.builds(LevelSet, request=_requests, logger=_names, level=st.just("DEBUG")),
        st.builds(
            AssignmentMade,
            generation=st.integers(1, 3),
            log_position=_positions,
            connectors=st.dictionaries(_names, _workers),
            tasks=st.dictionaries(_names, st.lists(_workers, max_size=3)),
        ),
        st.builds(Purged, names=st.lists(_names, max_size=2)),
    )


def put(name: str, request: str = "", *, expected: int | None = None, **config: str) -> Record:
    return ConnectorPut(request=request, name=name, config=config, expected_version=expected)


def status(
    name: str,
    task: int | None,
    generation: int,
    phase: Phase,
    *,
    worker: str = "w1",
    gone: bool = False,
    cause: str = "",
) -> StatusSet:
    return StatusSet(
        connector=name,
        task=task,
        generation=generation,
        phase=phase,
        worker=worker,
        gone=gone,
        cause=Cause(cause) if cause else None,
        ending=Ending.RETURNED if gone else None,
    )


def folded(*given: Record, view: ClusterView | None = None) -> tuple[ClusterView, list[Outcome]]:
    """Fold records one after the other."""
    view = ClusterView() if view is None else view
    outcomes = []
    for record in given:
        view, outcome = fold(view, record, view.position + 1)
        outcomes.append(outcome)
    return view, outcomes
