"""Errors of serdes, with the operator that met them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, SerializationError
from headrace.runtime.user_code.failures import may_pass

if TYPE_CHECKING:
    from headrace.topology.operators.core import Operator

__all__ = ["writing"]


@contextmanager
def writing(operator: Operator, what: str) -> Iterator[None]:
    """Name the operator when a value or key cannot be written.

    Raises
    ------
    SerializationError
        In place of whatever a serde raises inside the context, unless it may pass by itself.
    """
    try:
        yield
    except Exception as error:
        if may_pass(error):
            raise
        reason = error.message if isinstance(error, HeadraceError) else error
        advice = error.hint if isinstance(error, HeadraceError) and error.hint else None
        raise SerializationError(
            f"operator '{operator.name}' cannot write {what}: {type(error).__name__}: {reason}",
            hint=f"the operator was made at {operator.origin}; "
            + (advice or "give it a serde that fits the values that reach it"),
        ) from error
