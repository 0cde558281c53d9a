"""The life of a connector or task: one pure function from state and event to state and actions."""

from __future__ import annotations

from headrace.connect.lifecycle.actions import (
    Action,
    AskStop,
    Cancel,
    Kill,
    Launch,
    RecordState,
    Refuse,
    Release,
)
from headrace.connect.lifecycle.events import (
    CancelDone,
    Cause,
    Event,
    HostExited,
    HostFailed,
    HostStarted,
    HostStopped,
    LaunchFailed,
    ProbeFailed,
    ProbePassed,
    Start,
    StopAsked,
    StopFailed,
    Tick,
    Waits,
    boot_time,
)
from headrace.connect.lifecycle.phases import (
    Ending,
    KafkaState,
    Phase,
    StopStep,
    Target,
    kafka_state,
)
from headrace.connect.lifecycle.transition import transition
from headrace.connect.lifecycle.units import Rung, UnitState, UnitTimeouts

__all__ = [
    "Action",
    "AskStop",
    "Cancel",
    "CancelDone",
    "Cause",
    "Ending",
    "Event",
    "HostExited",
    "HostFailed",
    "HostStarted",
    "HostStopped",
    "KafkaState",
    "Kill",
    "Launch",
    "LaunchFailed",
    "UnitTimeouts",
    "Phase",
    "ProbeFailed",
    "ProbePassed",
    "RecordState",
    "Refuse",
    "Release",
    "Rung",
    "Start",
    "StopStep",
    "StopAsked",
    "StopFailed",
    "Target",
    "Tick",
    "UnitState",
    "Waits",
    "boot_time",
    "kafka_state",
    "transition",
]
