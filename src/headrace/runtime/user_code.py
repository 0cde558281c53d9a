"""Calling the user's functions: fast on good records, precise about the bad one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import HeadraceError, UserCodeError
from headrace.user_lines import user_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.runtime.chunk import Int64s
    from headrace.topology.operators import Operator

__all__ = ["Locator", "UserFunction"]


class Locator(Protocol):
    """Tells where the record with a mark comes from."""

    def locate(self, mark: int) -> str:
        """Describe the place, e.g. ``topic 'lines', queue 2, offset 17``."""


class UserFunction:
    """One function of the user's, called for many records at once.

    Parameters
    ----------
    operator
        The operator that it belongs to, named in errors.
    function
        Called once per item.
    locator
        Turns a record's mark into its place, for errors.
    """

    __slots__ = ("_function", "_locator", "_operator")

    def __init__(self, operator: Operator, function: Callable[..., Any], locator: Locator) -> None:
        self._operator = operator
        self._function = function
        self._locator = locator

    def over(self, marks: Int64s, *columns: Iterable[Any]) -> list[Any]:
        """Call the function for each item and give the results.

        ``list.extend`` keeps what came before an exception, so its length is the index of the
        record that raised: no bookkeeping on the fast path.
        """
        results: list[Any] = []
        try:
            results.extend(map(self._function, *columns))
        except Exception as error:
            raise self.failure(error, int(marks[len(results)])) from error
        return results

    def listed(self, marks: Int64s, items: list[Any]) -> list[list[Any]]:
        """Turn each result of the function into a list; None gives an empty one."""
        results: list[list[Any]] = []
        try:
            results.extend([] if item is None else list(item) for item in items)
        except Exception as error:
            raise self.failure(error, int(marks[len(results)])) from error
        return results

    def call(self, mark: int, *arguments: Any) -> Any:
        """Call the function once."""
        try:
            return self._function(*arguments)
        except Exception as error:
            raise self.failure(error, mark) from error

    def failure(self, error: Exception, mark: int) -> HeadraceError:
        """Make the error that names operator, record, function and the user's own line."""
        if isinstance(error, HeadraceError):
            return error
        line = user_line(error, self._function)
        return UserCodeError(
            f"operator '{self._operator.name}' failed on the record at"
            f" {self._locator.locate(mark)}: {type(error).__name__}: {error}"
            + ("" if line is None else f"\n  at {line}"),
            hint=f"the operator was made at {self._operator.origin};"
            " nothing of this batch was committed: correct the function and start again",
        )
