"""Builds that are broken on purpose, which the simulation must find."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from headrace.broker.settings import UNSAFE_VARIABLE, Guards


@dataclass(frozen=True)
class Mutant:
    """What is broken: nothing, by default."""

    name: str = ""
    #: Words of what is found.
    breaks: str = ""
    #: The first seed that is tried, not far from the first that finds it.
    since: int = 0
    guards: Guards = Guards()  # noqa: RUF009 - frozen
    #: Safeguards of transactions on RocketMQ that are left out.
    unsafe: str = ""
    #: Place and what is there instead.
    changes: tuple[tuple[object, str, object], ...] = ()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Break it for a while."""
        with ExitStack() as stack:
            stack.enter_context(patch.dict(os.environ, {UNSAFE_VARIABLE: self.unsafe}))
            for place, name, instead in self.changes:
                stack.enter_context(patch.object(place, name, instead))
            yield
