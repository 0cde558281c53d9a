"""What a broker remembers of its part in replication, over restarts."""

from __future__ import annotations

import uuid
from enum import StrEnum
from pathlib import Path

import msgspec

from headrace.broker.snapshots import load_snapshot, save_snapshot

__all__ = ["ReplicaState", "Role", "ReplicaStart", "load_state", "role_at_start", "save_state"]


class Role(StrEnum):
    """A broker's part in replication."""

    #: It takes writes.
    PRIMARY = "primary"
    #: It copies another broker's log.
    FOLLOWER = "follower"
    #: It was a primary until another broker was promoted.
    FENCED = "fenced"


class ReplicaState(msgspec.Struct, kw_only=True):
    """The broker's file ``replication.json``."""

    role: Role = Role.PRIMARY
    #: Identity of the log, empty until somebody follows it.
    log: str = ""
    #: Own id as a follower.
    follower: str = ""
    #: Broker to follow; of a fenced broker: who was promoted.
    primary: str = ""
    #: Whom this broker followed until it was promoted.
    left: str = ""
    #: Whether that one has yet to be told that it is no primary any more.
    tell: bool = False
    #: Whether this follower may have messages of the time when it was a primary itself, which no
    #: other has: until it has been compared with its primary.
    differs: bool = False
    #: Highest epoch that was heard of.
    epoch: int = 0
    #: Where the followers were last heard.
    followers: list[str] = []


class ReplicaStart(msgspec.Struct, frozen=True):
    """How to begin, and what to say about it."""

    role: Role
    warning: str = ""


def role_at_start(state: ReplicaState, follow: str | None) -> ReplicaStart:
    """Decide what a broker is when it starts, by its file and by what it is told to follow.

    Examples
    --------
    >>> role_at_start(ReplicaState(), None).role, role_at_start(ReplicaState(), "h:1").role
    (<Role.PRIMARY: 'primary'>, <Role.FOLLOWER: 'follower'>)
    """
    if follow is None:
        if state.role is Role.FOLLOWER:
            return ReplicaStart(
                Role.FOLLOWER,
                f"this broker goes on following {state.primary}: it was never promoted",
            )
        return ReplicaStart(state.role)
    if state.role is Role.PRIMARY and state.left == follow:
        # The command line of old: to follow now would throw away what was written since.
        return ReplicaStart(
            Role.PRIMARY,
            f"this broker was promoted in place of {follow}, which it is told to follow: it "
            "stays a primary",
        )
    return ReplicaStart(Role.FOLLOWER)


def load_state(folder: Path) -> ReplicaState:
    """Read the file of a data folder; a broker that never took part has an empty one."""
    state = load_snapshot(folder / "replication.json", ReplicaState) or ReplicaState()
    state.follower = state.follower or uuid.uuid4().hex
    return state


def save_state(folder: Path, state: ReplicaState) -> None:
    """Make the file durable."""
    save_snapshot(folder / "replication.json", state)
