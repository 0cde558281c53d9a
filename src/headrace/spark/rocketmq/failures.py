"""Failures as Spark shows them: the message, without the path through our own code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator
from typing import ParamSpec, TypeVar

from headrace.errors import HeadraceError

__all__ = ["clear_errors", "clear_errors_of"]

P = ParamSpec("P")
R = TypeVar("R")


def clear_errors(call: Callable[P, R]) -> Callable[P, R]:
    """Drop the traceback of our own errors: what to do stands in their message.

    Spark prints the whole traceback in front of it, which hides the two lines that matter.
    """

    @functools.wraps(call)
    def clear(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except HeadraceError as error:
            raise error.with_traceback(None) from None

    return clear


def clear_errors_of(items: Iterator[R]) -> Generator[R, None, None]:
    """Do the same for an iterator."""
    try:
        yield from items
    except HeadraceError as error:
        raise error.with_traceback(None) from None
