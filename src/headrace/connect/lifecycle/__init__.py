"""The life of a connector or task: one pure function from state and event to state and actions."""

from __future__ import annotations

from headrace.connect.lifecycle.actions import (
    Action,
    AskStop,
    Cancel,
    Kill,
    Launch,
    Record,
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
from headrace.connect.lifecycle.phases import Ending, KafkaState, Phase, Step, Target, kafka_state
from headrace.connect.lifecycle.transition import transition
from headrace.connect.lifecycle.units import Limits, Rung, Unit

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
    "Limits",
    "Phase",
    "ProbeFailed",
    "ProbePassed",
    "Record",
    "Refuse",
    "Release",
    "Rung",
    "Start",
    "Step",
    "StopAsked",
    "StopFailed",
    "Target",
    "Tick",
    "Unit",
    "Waits",
    "boot_time",
    "kafka_state",
    "transition",
]
