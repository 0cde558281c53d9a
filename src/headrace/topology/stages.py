"""The cut of a topology into stages: a shuffle before every stateful operator that needs one.

A stateful operator needs all records of a key in one partition.  So a shuffle comes before
it, unless the key is still the one of an earlier shuffle; ``repartition`` always has one, and bolts
have one according to their groupings.  Records that the job reads from its own topics begin in
stage 0, like all records that are read.  An operator's stage is the number of shuffles on the
longest path to it; operators of one stage are fused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from headrace.errors import TopologyError
from headrace.topology.operators.core import Operator, Source, Through, is_loop

# Updates: results that replace earlier ones, and operators that must take those back.
#
# How often an operator with ``emit="update"`` emits depends on how records are cut into batches.
# This does not matter to a table, which holds the last value of each key, but it matters to an
# operator that adds values up.  So if such an operator follows, the old value comes before each new
# one, marked as taken back.  If none follows, only the new values come.


def gives_updates(operators: Iterable[Operator], name: str) -> bool:
    """Return whether the results of an operator replace earlier ones."""
    return _source_of_updates({operator.name: operator for operator in operators}, name) is not None


def taking_back(
    operators: Sequence[Operator], children: Callable[[str], Sequence[Operator]]
) -> frozenset[str]:
    """Return the operators that take old values back, and those that carry them there."""
    taking: set[str] = set()
    for operator in reversed(operators):
        carries = operator.carries_back and not operator.stateful
        if operator.takes_back or (
            carries and any(child.name in taking for child in children(operator.name))
        ):
            taking.add(operator.name)
    return frozenset(taking)


def misplaced_updates(operators: Sequence[Operator]) -> Iterator[TopologyError]:
    """Yield errors for updates whose old values cannot be taken back, or do not arrive.

    Either updates feed an operator that goes by the time of records, or an operator that takes old
    values back gets them through one that keeps none.
    """
    by_name = {operator.name: operator for operator in operators}
    for operator in operators:
        if not (operator.refuses_updates or operator.takes_back):
            continue
        for parent in operator.parents:
            source, through = _origin_of_updates(by_name, parent)
            if source is not None and operator.refuses_updates:
                yield _no_place(operator, source)
            if source is not None and through is not None:
                yield _not_carried(operator, source, through)


def _no_place(operator: Operator, source: Operator) -> TopologyError:
    return TopologyError(
        f"{operator.label} '{operator.name}' (made at {operator.origin}) goes by the time of each"
        f" record, but {source.label} '{source.name}' (made at {source.origin}) emits updates,"
        " which take earlier ones back",
        hint=f"set emit=\"each\" on '{source.name}' for a result per record, or window it with"
        ' emit="close"',
    )


def _not_carried(operator: Operator, source: Operator, through: Operator) -> TopologyError:
    return TopologyError(
        f"{operator.label} '{operator.name}' (made at {operator.origin}) must take old values"
        f" back, because {source.label} '{source.name}' (made at {source.origin}) emits updates,"
        f" but {through.label} '{through.name}' (made at {through.origin}) between them keeps no"
        " old results",
        hint=f"set emit=\"each\" on '{source.name}' for a result per record, or window it with"
        f" emit=\"close\", or move '{operator.name}' before '{through.name}'",
    )


def _source_of_updates(by_name: Mapping[str, Operator], name: str) -> Operator | None:
    source, through = _origin_of_updates(by_name, name)
    return source if through is None else None


def _origin_of_updates(
    by_name: Mapping[str, Operator], name: str
) -> tuple[Operator | None, Operator | None]:
    """Find the source of an operator's updates, and the one on the way that keeps no old ones."""
    operator = by_name[name]
    if operator.updates:
        return operator, None
    passing = operator.parents
    if operator.stateful:
        passing = tuple(p for i, p in enumerate(passing) if i in operator.update_ports)
    for parent in passing:
        source, through = _origin_of_updates(by_name, parent)
        if source is not None:
            return source, operator if operator.stateful else through
    return None, None


@dataclass(frozen=True, slots=True)
class Shuffle:
    """An edge of the graph on which records move to the partition of their key."""

    parent: str
    operator: str
    #: The stage that sends, and the stage that receives.
    source_stage: int
    target_stage: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Operators that run fused, in one task per partition."""

    number: int
    #: Every operator after its parents.
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class StagePlan:
    """A topology cut into stages.

    Examples
    --------
    >>> from headrace import StreamBuilder, serdes
    >>> builder = StreamBuilder("word-count")
    >>> lines = builder.source("lines", serdes.string)
    >>> lines.key_by(str.lower).count().sink("counts", serdes.json)
    <end of 'sink-counts'>
    >>> plan = builder.build().plan
    >>> [[operator.name for operator in stage.operators] for stage in plan.stages]
    [['source-lines', 'key_by-lines'], ['count-lines', 'sink-counts']]
    >>> plan.stage_of("sink-counts")
    1
    """

    stages: tuple[Stage, ...]
    shuffles: tuple[Shuffle, ...]
    _stage_of: Mapping[str, int]
    _children: Mapping[str, tuple[Operator, ...]]

    def stage_of(self, name: str) -> int:
        """Return the number of an operator's stage."""
        return self._stage_of[name]

    @cached_property
    def time_step(self) -> int:
        """Grid of the times at which operators act, ms: the bounds of all of them lie on it."""
        operators = [operator for stage in self.stages for operator in stage.operators]
        steps = [number for o in operators for number in (o.time_step, o.delay)]
        return math.gcd(*steps) or 1

    def clocks_of(self, name: str) -> Mapping[str, int]:
        """Return the operators whose clocks an operator goes by, the nearest on each path upstream.

        Each has the number of ms by which a record may be older than that clock's watermark.
        """
        operators = {o.name: o for stage in self.stages for o in stage.operators}
        found: dict[str, int] = {}
        pending = [(parent, 0) for parent in operators[name].parents]
        while pending:
            parent, delay = pending.pop()
            operator = operators[parent]
            if operator.keeps_time:
                found[parent] = max(delay, found.get(parent, 0))
            else:
                pending += [(each, delay + operator.delay) for each in operator.parents]
        return found

    def sources_of(self, name: str) -> list[Source]:
        """Return the nearest source on each path upstream of an operator; for a source, itself."""
        operators = {o.name: o for stage in self.stages for o in stage.operators}
        found = {name: operators[name]}
        pending = [name]
        while pending:
            child = operators[pending.pop()]
            for parent in () if isinstance(child, Source) else child.parents:
                if parent not in found:
                    found[parent] = operators[parent]
                    pending.append(parent)
        return [operator for operator in found.values() if isinstance(operator, Source)]

    @cached_property
    def timed(self) -> bool:
        """Whether some operator acts on the progress of event time."""
        return any(operator.timed for stage in self.stages for operator in stage.operators)

    @cached_property
    def throughs(self) -> tuple[Through, ...]:
        """The operators that write what the next batch reads."""
        operators = [operator for stage in self.stages for operator in stage.operators]
        return tuple(operator for operator in operators if isinstance(operator, Through))

    def timed_behind(self, name: str) -> list[Operator]:
        """Return the operators downstream of one, also through topics, that act on event time."""
        found: dict[str, Operator] = {}
        pending = [name]
        while pending:
            for child in self.children(pending.pop()):
                if child.name not in found:
                    found[child.name] = child
                    pending.append(child.name)
        return [operator for operator in found.values() if operator.timed]

    @cached_property
    def taking_back(self) -> frozenset[str]:
        """The operators to which old values of updates go."""
        operators = {o.name: o for stage in self.stages for o in stage.operators}
        # The children are in the order of the graph, from which the order of the stages may differ.
        return taking_back([operators[name] for name in self._children], self.children)

    def retracts(self, operator: Operator) -> bool:
        """Return whether an operator must send the old value before each new one."""
        children = self.children(operator.name)
        return operator.updates and any(child.name in self.taking_back for child in children)

    def children(self, name: str) -> tuple[Operator, ...]:
        """Return the operators that an operator feeds, in the order in which they were added."""
        return self._children[name]


def cut_stages(operators: Sequence[Operator]) -> StagePlan:
    """Cut the operators of a topology into stages."""
    shuffled = _shuffled_edges(operators)
    stage_of: dict[str, int] = {}
    for operator in operators:
        parents = () if is_loop(operator) else operator.parents
        stage_of[operator.name] = max(
            (stage_of[parent] + ((parent, operator.name) in shuffled) for parent in parents),
            default=0,
        )
    stages = tuple(
        Stage(number, tuple(o for o in operators if stage_of[o.name] == number))
        for number in range(max(stage_of.values(), default=-1) + 1)
    )
    shuffles = tuple(
        Shuffle(parent, operator.name, stage_of[parent], stage_of[operator.name])
        for operator in operators
        for parent in operator.parents
        if (parent, operator.name) in shuffled
    )
    return StagePlan(stages, shuffles, stage_of, _children(operators))


def _shuffled_edges(operators: Sequence[Operator]) -> set[tuple[str, str]]:
    # Whether what an operator emits still has the key of the last shuffle.
    partitioned: dict[str, bool] = {}
    edges: set[tuple[str, str]] = set()
    for operator in operators:
        astray = [parent for parent in operator.parents if not partitioned[parent]]
        gathered = astray if operator.stateful or operator.gathers else ()
        moved = operator.moved or gathered
        edges.update((parent, operator.name) for parent in moved)
        # No other task knows its clock before the next stage.
        new_time = operator.keeps_time and bool(operator.parents)
        partitioned[operator.name] = operator.gathers or not (
            operator.changes_key or astray or new_time
        )
    return edges


def _children(operators: Sequence[Operator]) -> dict[str, tuple[Operator, ...]]:
    children: dict[str, list[Operator]] = {operator.name: [] for operator in operators}
    for operator in operators:
        for parent in operator.parents:
            children[parent].append(operator)
    return {name: tuple(found) for name, found in children.items()}
