"""The order of callbacks that JStorm's contract asks for (R7 to R18), as automata over traces.

:class:`TaskAutomaton` judges one instance: the calls that one copy of a user's object got, in their
order.  :func:`judge` judges a whole run: all instances of all tasks of a group, and what was
committed.  Both say what is wrong, or nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

#: Calls that take tuples or make them.
WORK = ("execute", "next_tuple")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a user's object."""

    name: str
    #: Of ``commit`` and ``ack_commit``: the number of the batch.
    batch: int | None = None
    #: What it was given, or what it gave (``finish_batch``).
    state: Any = None
    #: Component and task, instance and time: of a run's trace.
    task: tuple[str, int] = ("", 0)
    instance: str = ""
    time: int = 0

    def __str__(self) -> str:
        return f"{self.name}({'' if self.batch is None else self.batch})"


Kind = Literal["stateful", "keyed", "plain"]
"""What a component keeps: states of tasks, values of keys, or nothing."""


class TaskAutomaton:
    """Takes the calls of one instance, and says which one must not come where it comes.

    >>> TaskAutomaton().read([Call("prepare"), Call("init_state"), Call("finish_batch")])
    >>> TaskAutomaton().read([Call("prepare"), Call("execute")])
    'call 1, execute(): before init_state'
    """

    def __init__(self, kind: Kind = "stateful") -> None:
        self.kind = kind
        self.prepared = self.closed = False
        self.begun = kind != "stateful"
        #: Whether finish_batch was called and commit was not.
        self.finished = False
        #: What finish_batch gave, for commit.
        self.given: Any = None
        self.committed = self.acked = 0
        #: Whether a batch may come again, as after a roll-back.
        self.rolled = False

    def read(self, calls: Iterable[Call]) -> str | None:
        """Give the first thing that is wrong; None where nothing is."""
        for number, call in enumerate(calls):
            problem = self.take(call)
            if problem is not None:
                return f"call {number}, {call}: {problem}"
        return None

    def take(self, call: Call) -> str | None:
        """Take the next call; give what is wrong with it."""
        if self.closed:
            return "after cleanup"
        match call.name:
            case "prepare":
                problem = "a second time" if self.prepared else None
                self.prepared = True
            case _ if not self.prepared:
                problem = "before prepare"
            case "cleanup":
                problem, self.closed = None, True
            case "init_state" if self.kind == "stateful":
                problem = "a second time" if self.begun else None
                self.begun = True
            case "init_state" | "roll_back" | "commit" if self.kind != "stateful":
                problem = f"of a {self.kind} component"
            case _ if not self.begun:
                problem = "before init_state"
            case _:
                problem = self._of_batch(call)
        return problem

    def _of_batch(self, call: Call) -> str | None:
        match call.name:
            case "roll_back":
                self.finished, self.rolled, self.given = False, True, None
                return None
            case "finish_batch":
                return self._finish_batch(call)
            case "commit":
                return self._commit(call)
            case "ack_commit":
                return self._ack_commit(call)
        assert call.name in WORK, call
        return "between finish_batch and commit" if self.finished else None

    def _finish_batch(self, call: Call) -> str | None:
        if self.finished:
            return "a second time"
        self.finished, self.given = self.kind == "stateful", call.state
        return None

    def _commit(self, call: Call) -> str | None:
        assert call.batch is not None
        if not self.finished:
            return "before finish_batch"
        if call.state != self.given:
            return f"it got {call.state!r}, finish_batch gave {self.given!r}"
        if self.committed and not self.rolled and call.batch != self.committed + 1:
            return f"behind commit({self.committed})"
        if call.batch <= self.acked:
            return f"batch {self.acked} was acknowledged"
        self.finished, self.rolled, self.committed = False, False, call.batch
        return None

    def _ack_commit(self, call: Call) -> str | None:
        assert call.batch is not None
        if call.batch <= self.acked:
            return f"behind ack_commit({self.acked})"
        if self.finished:
            return "between finish_batch and commit"
        if self.committed and not self.rolled and call.batch > self.committed:
            return f"the last commit was {self.committed}"
        self.acked = call.batch
        return None


def judge(calls: Iterable[Call], committed: int | None = None) -> list[str]:
    """Give everything that is wrong with a run of a group.

    Parameters
    ----------
    calls
        Of all instances, with their times.
    committed
        The last batch that the job committed, where it is known.
    """
    ordered = sorted(calls, key=lambda call: call.time)
    return [*_of_instances(ordered), *_of_acknowledgements(ordered, committed)]


def _kind(names: Collection[str]) -> Kind:
    if "init_state" in names:
        return "stateful"
    return "keyed" if "finish_batch" in names else "plain"


def _of_instances(calls: Collection[Call]) -> Iterable[str]:
    instances: dict[tuple[tuple[str, int], str], list[Call]] = defaultdict(list)
    for call in calls:
        instances[call.task, call.instance].append(call)
    named: dict[str, set[str]] = defaultdict(set)
    for call in calls:
        named[call.task[0]].add(call.name)
    for (task, name), own in instances.items():
        problem = TaskAutomaton(_kind(named[task[0]])).read(own)
        if problem is not None:
            yield f"{task}, instance {name}: {problem}"


def _of_acknowledgements(calls: list[Call], committed: int | None) -> Iterable[str]:
    """No batch is acknowledged that some task has not committed, or that the job never committed.

    Nor does a task commit a batch anew that was acknowledged before: it cannot be rolled back.
    """
    highest = {call.task: 0 for call in calls if call.name == "commit"}
    acknowledged = 0
    for call in calls:
        number = call.batch or 0
        if call.name == "commit":
            if number <= acknowledged:
                yield f"{call.task}: {call} after the batch was acknowledged"
            highest[call.task] = max(highest[call.task], number)
        elif call.name == "ack_commit":
            late = sorted(task for task, batch in highest.items() if batch < number)
            if late:
                yield f"{call.task}: {call} before commits of {late}"
            if committed is not None and number > committed:
                yield f"{call.task}: {call}, the job committed {committed}"
            acknowledged = max(acknowledged, number)
