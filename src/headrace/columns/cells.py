"""The serde of a group's cells: in the state store, and after combining."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from headrace.encoding import decode, encode_exact
from headrace.serdes.base import Serde

#: First byte of a tuple as :mod:`headrace.encoding` writes it; no MessagePack array begins so.
_EXACT = ord("(")


class CellsSerde(Serde[tuple[Any, ...]]):
    """Writes the cells of a group: as MessagePack where that keeps them, else as plain data.

    Parameters
    ----------
    packs
        Whether all cells are of types that MessagePack keeps apart.

    Examples
    --------
    >>> cells = CellsSerde(packs=True)
    >>> cells.deserialize(cells.serialize((3, 1.5))), cells.deserialize(cells.serialize((2**70,)))
    ((3, 1.5), (1180591620717411303424,))
    """

    name: ClassVar[str] = "cells"

    def __init__(self, *, packs: bool) -> None:
        self._packs = packs
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(tuple)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (self._packs,)

    def serialize(self, value: tuple[Any, ...]) -> bytes:
        """Write the cells of one group."""
        if self._packs:
            try:
                return self._encoder.encode(value)
            except OverflowError:
                pass
        return encode_exact(value)

    def deserialize(self, data: bytes) -> tuple[Any, ...]:
        """Read the cells of one group."""
        if data[0] == _EXACT:
            cells: tuple[Any, ...] = decode(data)
            return cells
        return self._decoder.decode(data)

    def serialize_many(self, values: list[tuple[Any, ...]]) -> pa.BinaryArray:
        """Write the cells of many groups."""
        if self._packs:
            try:
                return pa.array(list(map(self._encoder.encode, values)), pa.binary())
            except OverflowError:
                pass
        return super().serialize_many(values)

    def deserialize_many(self, data: pa.BinaryArray) -> list[tuple[Any, ...]]:
        """Read the cells of many groups."""
        try:
            return list(map(self._decoder.decode, data.to_pylist()))
        except msgspec.DecodeError:
            # Some are plain data.
            return super().deserialize_many(data)


def _make(packs: bool) -> CellsSerde:  # noqa: FBT001 - pickle gives no keywords
    return CellsSerde(packs=packs)
