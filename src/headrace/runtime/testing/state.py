"""State stores for a test to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.keys import decode_key, encode_key

if TYPE_CHECKING:
    from headrace.runtime.state import MemoryBase
    from headrace.serdes import Serde

__all__ = ["TestState"]


class TestState:
    """One state store, over all partitions."""

    __test__ = False

    def __init__(self, serde: Serde[Any], bases: list[MemoryBase]) -> None:
        self._serde = serde
        self._bases = bases

    def get(self, key: object) -> Any:
        """Give the state of a key, None where there is none."""
        encoded = encode_key(key)
        for base in self._bases:
            if encoded in base.entries:
                return self._serde.deserialize(base.entries[encoded])
        return None

    def all(self) -> dict[Any, Any]:
        """Give the state of every key."""
        return {
            decode_key(key): self._serde.deserialize(value)
            for base in self._bases
            for key, value in base.scan()
        }

    def __len__(self) -> int:
        return sum(len(base.entries) for base in self._bases)
