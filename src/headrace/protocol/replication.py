"""What a follower, its primary and those who look after them say to one another.

Bodies are JSON; bytes of the log travel as they are, in the body of an answer to FOLLOW_LOG.
"""

from __future__ import annotations

import msgspec

PRIMARY = "primary"
"""Field of a refusal that names the broker to ask instead."""

EpochRow = tuple[int, int, int]
"""Number, start and mark of an epoch."""


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """A follower that has just connected."""

    #: Its id, the same over restarts, and where clients reach it.
    follower: str
    address: str
    #: Its broker name and cluster: those of the primary, as it may take its place.
    broker: str = ""
    cluster: str = ""


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a primary says of its log."""

    #: Identity of the log: all copies of one log share it.
    log: str
    epochs: list[EpochRow]
    begin: int
    end: int
    #: First position of the newest segment.
    newest: int
    #: Broker id of the follower in routes.
    number: int


class TableRow(msgspec.Struct, frozen=True):
    """One table of the primary: its version, and its JSON."""

    version: int
    content: msgspec.Raw


class Tables(msgspec.Struct, frozen=True, kw_only=True):
    """Tables that have another version than the follower's."""

    #: A restart of the primary counts versions anew; this tells it.
    started: int
    tables: dict[str, TableRow]


class FenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A broker was promoted, or is about to be."""

    epoch: int
    #: Where clients reach the new primary.
    primary: str
    log: str


class FenceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The old primary takes no more; this is all that it has."""

    end: int


class PromoteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A follower is a primary now."""

    epoch: int
    #: Where the epoch begins in the log.
    position: int
    #: Whether the old primary was there, and said that it takes no more.
    fenced: bool


class ReplicaRow(msgspec.Struct, frozen=True, kw_only=True):
    """One follower, as its primary sees it."""

    number: int
    address: str
    #: It has everything before this position, and before ``durable`` on disk.
    position: int
    durable: int
    lag: int
    #: Seconds since it was last heard; None when its connection ended.
    heard: float | None


class ReplicationInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker says of its part in replication."""

    #: "primary", "follower" or "fenced".
    role: str
    log: str
    epoch: int
    begin: int
    end: int
    #: Whom a follower follows, or who fenced a primary.
    primary: str
    #: What a follower is doing.
    state: str
    #: Bytes that the primary has and a follower has not; None when it does not know.
    lag: int | None
    replicas: list[ReplicaRow]
