"""Topology: the immutable graph of operators that a front door builds and an executor runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from headrace.topology.describe import describe, to_dot
from headrace.topology.errors import ErrorPolicy, dead_letter_topic
from headrace.topology.names import commit_topic, state_topic
from headrace.topology.operators.batches import BatchSink
from headrace.topology.operators.bolts import Spout
from headrace.topology.operators.core import Operator, Sink, Source
from headrace.topology.operators.through import Through
from headrace.topology.stages import StagePlan, cut_stages
from headrace.topology.validation import validate

__all__ = ["Topology"]


@dataclass(frozen=True)
class Topology:
    """What a job does, as data; checked when it is made.

    Parameters
    ----------
    name
        The job: prefix of its topics, and its consumer group.
    operators
        The nodes, each after its parents.

    Raises
    ------
    TopologyError
        The graph cannot work: the message names the operators and the user's lines.
    """

    name: str
    operators: tuple[Operator, ...]

    def __post_init__(self) -> None:
        validate(self.name, self.operators)

    def with_policy(self, policy: ErrorPolicy) -> Topology:
        """Give the topology with a policy for records that would stop the job.

        Operators that have a policy of their own (``on_error``) keep it.

        Raises
        ------
        TopologyError
            There is no such policy, or the job reads the topic of its dead letters.
        """
        if policy == "fail":
            return self
        return Topology(
            self.name,
            tuple(
                replace(operator, on_error=policy) if operator.on_error == "fail" else operator
                for operator in self.operators
            ),
        )

    @cached_property
    def plan(self) -> StagePlan:
        """The cut into stages."""
        return cut_stages(self)

    @cached_property
    def _by_name(self) -> dict[str, Operator]:
        return {operator.name: operator for operator in self.operators}

    def operator(self, name: str) -> Operator:
        """Find an operator by its name.

        Raises
        ------
        KeyError
            There is none of this name.
        """
        return self._by_name[name]

    @property
    def sources(self) -> tuple[Source, ...]:
        """The operators that read topics."""
        return tuple(o for o in self.operators if isinstance(o, Source))

    @property
    def spouts(self) -> tuple[Spout, ...]:
        """The operators that run users' spouts."""
        return tuple(o for o in self.operators if isinstance(o, Spout))

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The operators that write topics."""
        return tuple(o for o in self.operators if isinstance(o, Sink))

    @property
    def batch_sinks(self) -> tuple[BatchSink, ...]:
        """The sinks out of which committed batches are read back."""
        return tuple(o for o in self.operators if isinstance(o, BatchSink))

    @property
    def throughs(self) -> tuple[Through, ...]:
        """The sinks whose topics the job itself reads, a batch later."""
        return tuple(o for o in self.operators if isinstance(o, Through))

    @property
    def dead_letter_topics(self) -> list[str]:
        """The topics that take the messages of records that failed."""
        topics = (dead_letter_topic(operator.on_error) for operator in self.operators)
        return list(dict.fromkeys(topic for topic in topics if topic is not None))

    @property
    def stateful(self) -> tuple[Operator, ...]:
        """The operators that keep state."""
        return tuple(o for o in self.operators if o.stateful)

    @property
    def timed(self) -> bool:
        """Whether some operator acts on the progress of event time."""
        return any(operator.timed for operator in self.operators)

    @property
    def commit_topic(self) -> str:
        """The topic that holds the job's commit records."""
        return commit_topic(self.name)

    @property
    def state_topics(self) -> dict[str, str]:
        """The topic of each stateful operator's store, by the operator's name."""
        return {o.name: state_topic(self.name, o.name) for o in self.stateful}

    def describe(self) -> str:
        """Show stages, operators and topics as text that depends on the topology alone."""
        return describe(self.name, self.plan)

    def to_dot(self) -> str:
        """Show the graph in Graphviz's language."""
        return to_dot(self.name, self.plan)
