"""Mutations of bytes, drawn by Hypothesis so that what fails shrinks to few of them."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hypothesis import strategies as st

__all__ = ["Mutation", "mutated", "random_input"]

Kind = Literal["set", "flip", "cut", "drop", "repeat", "insert", "number", "splice", "text"]
_KINDS: tuple[Kind, ...] = (
    "set",
    "flip",
    "cut",
    "drop",
    "repeat",
    "insert",
    "number",
    "splice",
    "text",
)
_NUMBERS = [
    struct.pack(form, value)
    for form, values in (
        (">b", (-1, 0, 127)),
        (">h", (-1, 0, 1, 32_767, -32_768)),
        (">i", (-1, 0, 1, 4, 0x7FFF_FFFF, -0x8000_0000, 1 << 24, 0xFFFF)),
        (">q", (-1, 0, 1 << 40, (1 << 63) - 1, -(1 << 63))),
    )
    for value in values
]
_TEXTS = [
    b'"',
    b"{",
    b"}",
    b"[" * 80,
    b"null",
    b"true",
    b"-1",
    b"1e999",
    b"9" * 25,
    b"\\u0000",
    b"\\ud800",
    b"\xff\xfe",
    b"\x01",
    b"\x02",
    b"{}",
    b"%RETRY%",
    b"SCHEDULE_TOPIC_XXXX",
    b"-9223372036854775808",
]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change at a place, given as a share of the length in 1/65536."""

    kind: Kind
    at: int
    size: int
    value: int

    def apply(self, data: bytearray, others: Sequence[bytes]) -> None:
        """Change the bytes in place."""
        at = self.at * (len(data) + 1) >> 16
        end = min(len(data), at + self.size)
        match self.kind:
            case "set":
                data[at : at + 1] = bytes([self.value & 0xFF])
            case "flip":
                if at < len(data):
                    data[at] ^= 1 << self.value % 8
            case "cut":
                del data[at:]
            case "drop":
                del data[at:end]
            case "repeat":
                data[at:at] = data[at:end] * (1 + self.value % 3)
            case "insert":
                data[at:at] = bytes([self.value & 0xFF]) * (1 + self.size % 16)
            case "number":
                number = _NUMBERS[self.value % len(_NUMBERS)]
                data[at : at + len(number)] = number
            case "splice":
                other = others[self.value % len(others)]
                start = self.at * len(other) >> 16
                data[at:end] = other[start : start + self.size]
            case "text":
                data[at:at] = _TEXTS[self.value % len(_TEXTS)]


_mutations = st.builds(
    Mutation,
    st.sampled_from(_KINDS),
    st.integers(0, 65_535),
    st.integers(1, 64),
    st.integers(0, 255),
)


@st.composite
def mutated(draw: st.DrawFn, corpus: Sequence[bytes]) -> bytes:
    """Take one of the corpus and change it in a few places."""
    # By number: Hypothesis writes out what it samples from.
    data = bytearray(corpus[draw(st.integers(0, len(corpus) - 1))])
    for mutation in draw(st.lists(_mutations, min_size=1, max_size=6)):
        mutation.apply(data, corpus)
    return bytes(data)


def random_input(choice: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Do the same without Hypothesis: a hundred times as fast, but nothing shrinks."""
    data = bytearray(choice.choice(corpus))
    for _ in range(choice.randint(1, 6)):
        kind = choice.choice(_KINDS)
        at, size, value = choice.getrandbits(16), choice.randint(1, 64), choice.getrandbits(8)
        Mutation(kind, at, size, value).apply(data, corpus)
    return bytes(data)
