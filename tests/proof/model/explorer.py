"""Every state that a small model can reach: what is wrong in one of them, and the way there."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)


class Model(Protocol[State]):
    """A protocol with few records, drivers and faults."""

    def first(self) -> State:
        """Give the state in which nothing has happened."""

    def steps(self, state: State) -> Iterable[tuple[str, State]]:
        """Give everything that may happen next, in words, and what it leads to."""

    def wrong(self, before: State, after: State) -> str | None:
        """Say what is wrong with a state, or with the step that led there."""

    def finished(self, state: State) -> bool:
        """Tell whether all input is processed and visible."""


@dataclass(frozen=True)
class Outcome:
    """What was found, with the shortest way there."""

    states: int
    wrong: str | None = None
    trace: tuple[str, ...] = ()

    def story(self) -> str:
        """Write the way as a list that people can follow."""
        lines = [f"{number:3}. {step}" for number, step in enumerate(self.trace, start=1)]
        return "\n".join([*lines, f"  => {self.wrong}"])


class Explorer(Generic[State]):
    """Breadth first through all states; a state that can no longer finish is wrong, too."""

    def __init__(self, model: Model[State], most: int) -> None:
        self._model = model
        self._most = most
        self._came: dict[State, tuple[State, str] | None] = {}
        self._from: dict[State, list[State]] = {}

    def explore(self) -> Outcome:
        """Look at every state; stop at the first that is wrong."""
        # States hold no cycles, and there are many: looking for some takes half of the time.
        gc.disable()
        try:
            return self._explore()
        finally:
            gc.enable()

    def _explore(self) -> Outcome:
        first = self._model.first()
        self._came[first] = None
        queue = deque([first])
        while queue:
            state = queue.popleft()
            for label, after in self._model.steps(state):
                if after == state:
                    continue
                self._from.setdefault(after, []).append(state)
                if after not in self._came:
                    self._came[after] = (state, label)
                    queue.append(after)
                if (wrong := self._model.wrong(state, after)) is not None:
                    return self._outcome(wrong, state, label)
            assert len(self._came) <= self._most, f"more than {self._most} states"
        stuck = self._stuck()
        if stuck is not None:
            return self._outcome("from here no way leads to the end of the input", stuck)
        return Outcome(len(self._came))

    def _stuck(self) -> State | None:
        todo = [state for state in self._came if self._model.finished(state)]
        good = set(todo)
        while todo:
            for before in self._from.get(todo.pop(), ()):
                if before not in good:
                    good.add(before)
                    todo.append(before)
        return next((state for state in self._came if state not in good), None)

    def _outcome(self, wrong: str, state: State, *last: str) -> Outcome:
        steps = list(last)
        while (came := self._came[state]) is not None:
            state, label = came
            steps.append(label)
        return Outcome(len(self._came), wrong, tuple(reversed(steps)))
