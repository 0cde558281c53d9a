"""How a blocking twin is made from an asynchronous class: one method at a time, types kept."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from headrace.client._loop import loop_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator

__all__ = ["Twin", "blocking", "blocking_iterator", "same"]

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
# What is made for a class serves those that inherit from it, too.
A_co = TypeVar("A_co", covariant=True)


class Twin(Generic[A_co]):
    """A blocking object that hands its calls to an asynchronous one on the background loop."""

    def __init__(self, inner: A_co) -> None:
        self._inner = inner

    @property
    def asynchronous(self) -> A_co:
        """The object that does the work, for use on the background loop only."""
        return self._inner


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Twin[A], P], R]:
    """Make the blocking form of a coroutine method."""

    @functools.wraps(method)
    def call(self: Twin[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return loop_thread().call(method(self._inner, *args, **kwargs))

    return call


def blocking_iterator(
    method: Callable[Concatenate[A, P], AsyncGenerator[R, None]],
) -> Callable[Concatenate[Twin[A], P], Iterator[R]]:
    """Make the blocking form of an asynchronous generator method."""

    @functools.wraps(method)
    def call(self: Twin[A], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        thread = loop_thread()
        items = method(self._inner, *args, **kwargs)
        try:
            while True:
                try:
                    yield thread.call(anext(items))
                except StopAsyncIteration:
                    return
        finally:
            # Not awaited: the garbage collector may end this generator on any thread.
            thread.start(items.aclose())

    return call


def same(method: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[Twin[A], P], R]:
    """Take over a method that does not wait."""

    @functools.wraps(method)
    def call(self: Twin[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self._inner, *args, **kwargs)

    return call
