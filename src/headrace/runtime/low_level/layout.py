"""How the states of users' processors lie in their store."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.keys import decode_key
from headrace.runtime.low_level.cells import STATE, key_of_entry, key_part, name_part
from headrace.runtime.state.layouts import Read, Span, StateEntry, StateLayout

__all__ = ["ProcessLayout"]

_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
_BIAS = 1 << 63
_END_BYTES = 8


class ProcessLayout(StateLayout):
    """Declared states and timers by record key; see :mod:`headrace.runtime.low_level.cells`.

    Parameters
    ----------
    kinds
        The kind of each declared state, by its name, as the shape of the store has it.
    """

    def __init__(self, kinds: Mapping[str, str] | None = None) -> None:
        self._kinds = kinds or {}

    def of(self, shape: Mapping[str, str]) -> ProcessLayout:
        """Give the layout of one processor's store."""
        prefix = "kinds."
        return ProcessLayout(
            {
                part.removeprefix(prefix): kind
                for part, kind in shape.items()
                if part.startswith(prefix)
            }
        )

    def spans(self, key: bytes) -> list[Span]:
        """Give a span for each declared state."""
        heads = [STATE + key_part(key) + name_part(name) for name in self._kinds]
        # A name is ASCII, so its last byte can grow by one.
        return [(head, head[:-1] + bytes([head[-1] + 1])) for head in heads]

    def key_of(self, entry: bytes) -> bytes:
        """Give the record key of a state, of its end or of a timer."""
        return key_of_entry(entry)

    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Give what a state holds; a state of the store that no shape names is left out."""
        if entry[:1] != STATE:
            return []
        key = key_of_entry(entry)
        at = 1 + _LENGTH.size + len(key)
        name = entry[at + 1 : at + 1 + entry[at]].decode()
        kind, _, ends = self._kinds.get(name, "").partition(" ")
        more = entry[at + 1 + entry[at] :]
        if not kind or (kind == "list" and not more):
            return []
        own = value[_END_BYTES:] if ends else value
        found: dict[str, Any] = {}
        if kind == "map":
            found["item"] = decode_key(more)
        elif kind == "list":
            found["item"] = _NUMBER.unpack(more)[0]
        elif kind == "window":
            found["start"] = found["end"] = _NUMBER.unpack(more)[0] - _BIAS
        return [StateEntry(decode_key(key), read(own, f"states.{name}"), part=name, **found)]

    def gathered(self, entries: Sequence[StateEntry]) -> Any:
        """Put together the states of one key: a dict of them, of a map a dict, of a list a list."""
        parts = super().gathered(entries)
        for name in parts or ():
            if self._kinds[name].startswith("list"):
                parts[name] = list(parts[name].values())
        return parts
