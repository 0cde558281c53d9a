"""The six phases of a connector or task, and Kafka Connect's words for them."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

#: What Kafka Connect's REST API says of a connector or task.
KafkaState = Literal["UNASSIGNED", "RUNNING", "PAUSED", "FAILED", "STOPPED", "RESTARTING"]


class Phase(StrEnum):
    """Where one copy of a connector or task is in its life."""

    #: It is wanted, and nothing has been done for it yet.
    NEW = "NEW"
    #: Its process is being made, or its ``start()`` has not returned yet.
    PENDING = "PENDING"
    #: ``start()`` has returned.
    RUNNING = "RUNNING"
    #: It has been asked to end, and its process is not proven gone yet.
    STOPPING = "STOPPING"
    #: ``stop()`` has returned, and its process is gone.
    STOPPED = "STOPPED"
    #: Something raised, died or had to be killed.
    ERROR = "ERROR"


class Target(StrEnum):
    """What the user wants of a connector: a flag beside the phase, never a phase."""

    RUNNING = "RUNNING"
    #: It keeps its processes and does nothing.
    PAUSED = "PAUSED"
    #: It has no processes; config and offsets stay.
    STOPPED = "STOPPED"


class StopStep(StrEnum):
    """A rung of the stop ladder."""

    ASK = "ASK"
    CANCEL = "CANCEL"
    KILL = "KILL"
    #: The process and all that it forked are proven gone.
    GONE = "GONE"


class Ending(StrEnum):
    """How a copy ended."""

    #: ``stop()`` returned by itself.
    RETURNED = "RETURNED"
    #: The user's code raised.
    RAISED = "RAISED"
    #: ``stop()`` returned after the data plane's query had been cancelled.
    CANCELLED = "CANCELLED"
    #: It ran out of time, or the user wanted it at once: its process was killed.
    KILLED = "KILLED"
    #: Its process ended and nobody had asked it to.
    DIED = "DIED"


def kafka_state(phase: Phase, target: Target) -> KafkaState:
    """Say a phase in Kafka Connect's words.

    Examples
    --------
    >>> kafka_state(Phase.PENDING, Target.RUNNING)
    'UNASSIGNED'
    >>> kafka_state(Phase.RUNNING, Target.PAUSED)
    'PAUSED'
    >>> kafka_state(Phase.ERROR, Target.RUNNING)
    'FAILED'
    """
    if phase in {Phase.RUNNING, Phase.STOPPING}:
        return "PAUSED" if target is Target.PAUSED else "RUNNING"
    if target is Target.STOPPED:
        return "STOPPED"
    return "FAILED" if phase is Phase.ERROR else "UNASSIGNED"
