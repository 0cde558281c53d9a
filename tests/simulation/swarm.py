"""What some seeds have and others have not, so that these stay quick."""

from __future__ import annotations

from typing import Literal

__all__ = ["EXTRAS", "Extra", "has"]

Extra = Literal[
    "retention",
    "topics made anew",
    "cuts",
    "standby",
    "neighbours",
    "damage",
    "follower",
    "job begun anew",
    "tools",
]

#: Of so many seeds one has it, the one with this rest.  Odd seeds run the job of which every commit
#: is checked.
_SEEDS: dict[Extra, tuple[int, int]] = {
    "retention": (12, 5),
    "topics made anew": (12, 9),
    "cuts": (11, 4),
    "standby": (13, 6),
    "neighbours": (12, 3),
    "damage": (12, 7),
    "follower": (13, 2),
    # On the embedded broker; those of RocketMQ have nothing of it.
    "job begun anew": (12, 11),
    "tools": (12, 10),
}
EXTRAS = tuple(_SEEDS)


def has(seed: int, extra: Extra) -> bool:
    """Tell whether a seed has something.

    >>> [seed for seed in range(30) if has(seed, "retention")]
    [5, 17, 29]
    """
    divisor, rest = _SEEDS[extra]
    return seed % divisor == rest
