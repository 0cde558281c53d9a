"""Spouts and bolts that write down every call that they get, and fail where a test asks for it."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.topology import COMMIT_FAIL, BatchGroupId, TaskContext, Tuple
from headrace.transactions import Bolt, FieldsDeclarer, KeyValueBolt, Spout, StatefulBolt
from tests.transactions.automaton import Call

SENTENCES = ("to be or not to be", "that is the question", "to die to sleep")


@dataclass(frozen=True)
class Trace:
    """A folder that all processes of a run write to: one line per call."""

    folder: Path

    def note(self, who: Traced, name: str, batch: int | None = None, state: Any = None) -> None:
        """Write a call down, and raise if a test asked this one to fail."""
        context = who.context
        line = {
            "name": name,
            "batch": batch,
            "state": state,
            "task": [context.component, context.task],
            "instance": f"{os.getpid()}-{who.number}",
            "time": time.monotonic_ns(),
        }
        with (self.folder / "calls").open("a") as file:
            file.write(json.dumps(line) + "\n")
        asked = self.folder / f"{context.component}-{context.task}-{name}"
        if asked.exists():
            asked.unlink()
            message = f"{name} was asked to fail"
            raise RuntimeError(message)

    def fail(self, component: str, callback: str, task: int = 0) -> None:
        """Let the next such call fail."""
        (self.folder / f"{component}-{task}-{callback}").touch()

    def calls(self, component: str | None = None, task: int | None = None) -> list[Call]:
        """Give the calls of all, or of a component, or of one task of it."""
        path = self.folder / "calls"
        found = []
        for line in path.read_text().splitlines() if path.exists() else []:
            told = json.loads(line)
            own = (told["task"][0], told["task"][1])
            if component in (None, own[0]) and task in (None, own[1]):
                found.append(Call(**{**told, "task": own}))
        return found

    def names(self, component: str, task: int = 0) -> list[str]:
        """Give the calls of one task as text, tuples left out."""
        return [
            str(call)
            for call in self.calls(component, task)
            if call.name not in ("execute", "next_tuple")
        ]

    def forget(self) -> None:
        """Begin anew."""
        (self.folder / "calls").unlink(missing_ok=True)


class Traced:
    """Writes down what is called; comes before the class that does the work."""

    made = 0
    trace: Trace
    context: TaskContext
    number = 0

    def prepare(self, context: TaskContext, *more: Any) -> None:
        Traced.made += 1
        self.number, self.context = Traced.made, context
        if more:
            (self.collector,) = more
        self.trace.note(self, "prepare")

    def cleanup(self) -> None:
        self.trace.note(self, "cleanup")


class TracedState(Traced):
    """The five callbacks of state, over an attribute that :meth:`reset` sets."""

    fails_commit = False

    def reset(self, state: Any) -> None:
        raise NotImplementedError

    def snapshot(self) -> Any:
        raise NotImplementedError

    def init_state(self, state: Any) -> None:
        self.trace.note(self, "init_state", state=state)
        self.reset(state)

    def roll_back(self, state: Any) -> None:
        self.trace.note(self, "roll_back", state=state)
        self.reset(state)

    def finish_batch(self) -> Any:
        found = self.snapshot()
        self.trace.note(self, "finish_batch", state=found)
        return found

    def commit(self, batch_group_id: BatchGroupId, state: Any) -> Any:
        self.trace.note(self, "commit", batch_group_id.batch_id, state)
        asked = self.trace.folder / f"{self.context.component}-refuse"
        if asked.exists():
            asked.unlink()
            return COMMIT_FAIL
        return state

    def ack_commit(self, batch_group_id: BatchGroupId) -> None:
        self.trace.note(self, "ack_commit", batch_group_id.batch_id)


class Sentences(TracedState, Spout):
    """Cycles through sentences; its state is how many it has emitted."""

    def __init__(self, trace: Trace, limit: int | None = None, *, barrier: int = 0) -> None:
        self.trace, self.limit, self.barrier = trace, limit, barrier

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("sentence")

    def reset(self, state: Any) -> None:
        self.index = state or 0

    def snapshot(self) -> int:
        return self.index

    def next_tuple(self, collector: Any) -> None:
        self.trace.note(self, "next_tuple")
        if self.limit is None or self.index < self.limit:
            collector.emit([SENTENCES[self.index % len(SENTENCES)]])
            self.index += 1
        if self.barrier and self.index % self.barrier == 0:
            collector.emit_barrier()


class Split(Traced, Bolt):
    """Splits sentences."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("word")

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - the name of the interface
        self.trace.note(self, "execute")
        for word in tuple["sentence"].split():
            self.collector.emit((word,), anchor=tuple)


class Count(TracedState, StatefulBolt):
    """Counts words; its state is the counts."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("word", "count")

    def reset(self, state: Any) -> None:
        self.counts = Counter(state or {})

    def snapshot(self) -> dict[str, int]:
        return dict(self.counts)

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - the name of the interface
        self.trace.note(self, "execute")
        word = tuple["word"]
        self.counts[word] += 1
        self.collector.emit((word, self.counts[word]))


class KeyedCount(Traced, KeyValueBolt):
    """Counts words, a value per key."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("word", "count")

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - the name of the interface
        self.trace.note(self, "execute")
        word = tuple["word"]
        self.state[word] = self.state.get(word, 0) + 1
        self.collector.emit((word, self.state[word]))

    def finish_batch(self) -> None:
        self.trace.note(self, "finish_batch")

    def ack_commit(self, batch_group_id: BatchGroupId) -> None:
        self.trace.note(self, "ack_commit", batch_group_id.batch_id)


def words_of(sentences: int) -> Counter[str]:
    """Count the words of so many sentences: what R42 calls the closed form."""
    full, rest = divmod(sentences, len(SENTENCES))
    counts: Counter[str] = Counter()
    for number, sentence in enumerate(SENTENCES):
        for word in sentence.split():
            counts[word] += full + (number < rest)
    return +counts
