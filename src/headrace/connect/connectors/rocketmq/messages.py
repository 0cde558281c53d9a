"""What of a message's properties goes along to another cluster, and the marks that are added."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.keys import EXACT_KEY
from headrace.protocol import properties as names
from headrace.protocol.journal_tags import TAG
from headrace.protocol.properties import decode_properties

__all__ = ["ORIGIN", "REPLICA", "Circles", "carried", "carried_raw"]

ORIGIN = "HEADRACE_ORIGIN"
"""Property with the name of the cluster that a replicated message was born in."""

REPLICA = "HEADRACE_REPLICA"
"""Property by which a sink finds what it has sent: connector, queue and offset."""

_OF_THE_USER = frozenset(
    {names.KEYS, names.TAGS, names.UNIQ_KEY, names.SHARDING_KEY, names.CORRELATION_ID}
)
#: A delay has passed, a transaction has ended, a batch was committed: over there, not here.
_LEFT_BEHIND = (
    frozenset(value for name in names.__all__ if isinstance(value := getattr(names, name), str))
    - _OF_THE_USER
) | {TAG, REPLICA}


def carried(properties: Mapping[str, str]) -> dict[str, str]:
    """Leave out the properties that hold only for the cluster where they stand.

    >>> carried({"TAGS": "red", "DELAY": "3", "colour": "red"})
    {'TAGS': 'red', 'colour': 'red'}
    """
    return {name: value for name, value in properties.items() if name not in _LEFT_BEHIND}


def carried_raw(raw: bytes) -> tuple[str | None, dict[str, str]]:
    r"""Give the key of a message where it is text, and the other properties that go along.

    A key that is no text stays among the properties, as it stands there.

    >>> carried_raw(b"KEYS\x01k1\x02TAGS\x01red\x02")
    ('k1', {'TAGS': 'red'})
    """
    properties = carried(decode_properties(raw))
    if EXACT_KEY in properties:
        return None, properties
    return properties.pop(names.KEYS, None), properties


class Circles:
    """Keeps records from going in circles: each carries the name of the cluster it was born in.

    Parameters
    ----------
    here, there
        The clusters that records come from and go to; ``None``: what was replicated at all is
        left out.

    Examples
    --------
    >>> circles = Circles("paris", "berlin")
    >>> circles.marked({"colour": "red"})
    {'colour': 'red', 'HEADRACE_ORIGIN': 'paris'}
    >>> circles.marked({"HEADRACE_ORIGIN": "rome"})
    {'HEADRACE_ORIGIN': 'rome'}
    >>> circles.marked({"HEADRACE_ORIGIN": "berlin"}) is None
    True
    """

    def __init__(self, here: str, there: str | None) -> None:
        self._here = here
        self._there = there

    def marked(self, properties: dict[str, str]) -> dict[str, str] | None:
        """Give the properties with the mark; ``None`` where the record must not go on."""
        origin = properties.get(ORIGIN)
        if origin is None:
            return {**properties, ORIGIN: self._here}
        return None if self._there in {None, origin} else properties
