"""What connectors and their tasks are called."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from headrace.errors import ConnectorNameError

_LONGEST = 200
#: Characters that a URL or a topic's key cannot carry, or that change what a path means.
_FORBIDDEN = '/\\%?#;"<>|{}'


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """One task of a connector.

    Examples
    --------
    >>> str(TaskId("orders", 2))
    'orders-2'
    """

    connector: str
    #: Counted from 0.
    task: int

    def __str__(self) -> str:
        return f"{self.connector}-{self.task}"


@dataclass(frozen=True, slots=True)
class UnitId:
    """A connector, or one of its tasks, in one generation: what has a process of its own.

    Examples
    --------
    >>> str(UnitId("orders", None, 17)), str(UnitId("orders", 2, 18))
    ('orders@17', 'orders-2@18')
    """

    connector: str
    #: None: the connector itself.
    task: int | None
    #: Rises with every copy that is wanted: the position in the log that asked for it.
    generation: int

    @property
    def what(self) -> str:
        """The unit in words.

        >>> UnitId("orders", 2, 18).what
        'task orders-2'
        """
        if self.task is None:
            return f"connector {self.connector}"
        return f"task {self.connector}-{self.task}"

    def __str__(self) -> str:
        name = self.connector if self.task is None else f"{self.connector}-{self.task}"
        return f"{name}@{self.generation}"


def check_name(name: str) -> str:
    """Return a connector's name back if it can be one.

    Raises
    ------
    ConnectorNameError
        It is empty or too long, or holds something that a path of the REST API cannot carry.

    Examples
    --------
    >>> check_name("orders to postgres")
    'orders to postgres'
    >>> check_name("a/b")
    Traceback (most recent call last):
    headrace.errors.ConnectorNameError: a connector cannot be called 'a/b': it holds '/'
      → use letters, digits, '.', '_' and '-'
    """
    problem = _problem(name)
    if problem is not None:
        raise ConnectorNameError(
            f"a connector cannot be called {name[:_LONGEST]!r}: it {problem}",
            hint="use letters, digits, '.', '_' and '-'",
        )
    return name


def _problem(name: str) -> str | None:
    if not name:
        return "is empty"
    if len(name.encode(errors="replace")) > _LONGEST:
        return f"is longer than {_LONGEST} bytes"
    if name != name.strip():
        return "begins or ends with a space"
    if name in {".", ".."}:
        return "means a folder in a path"
    for one in name:
        if one in _FORBIDDEN:
            return f"holds {one!r}"
        if unicodedata.category(one) in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
            return f"holds the invisible character {one!r}"
    return None
