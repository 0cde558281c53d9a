"""A worker: what runs where, without ever running a plugin itself."""

from headrace.connect.lifecycle import Cause
from headrace.connect.worker.connect import (
    API_LEVEL,
    Connect,
)
from headrace.connect.worker.launching import (
    Counted,
    Exited,
    Failed,
    Figures,
    Healthy,
    Host,
    HostEvent,
    HostKind,
    HostSpec,
    Launcher,
    Listener,
    Listens,
    Moved,
    OutsideChanged,
    PluginAnswer,
    PluginCall,
    Question,
    ReconfigureAsked,
    Role,
    Started,
    Stopped,
    StopRaised,
    TopicTouched,
    Unhealthy,
    WaitsFor,
)
from headrace.connect.worker.periodic import (
    Periodic,
)
from headrace.connect.worker.planning import (
    PassPlan,
    StopCopy,
    plan,
)
from headrace.connect.worker.reporting import (
    ConnectorInfo,
    ConnectorStatus,
    OffsetEntry,
    PositionStore,
    Startup,
    TaskStatus,
    UnitReport,
)
from headrace.connect.worker.settings import (
    WorkerSettings,
)
from headrace.connect.worker.statistics import WorkerStatistics
from headrace.connect.worker.worker import (
    Worker,
)

__all__ = [
    "API_LEVEL",
    "Cause",
    "Connect",
    "ConnectorInfo",
    "ConnectorStatus",
    "Counted",
    "Exited",
    "Failed",
    "Figures",
    "Healthy",
    "Host",
    "HostEvent",
    "HostKind",
    "HostSpec",
    "Launcher",
    "Listener",
    "Listens",
    "Moved",
    "OffsetEntry",
    "OutsideChanged",
    "Periodic",
    "PassPlan",
    "PluginAnswer",
    "PluginCall",
    "PositionStore",
    "Question",
    "ReconfigureAsked",
    "Role",
    "Started",
    "Startup",
    "StopCopy",
    "StopRaised",
    "Stopped",
    "TaskStatus",
    "TopicTouched",
    "Unhealthy",
    "UnitReport",
    "WaitsFor",
    "Worker",
    "WorkerSettings",
    "WorkerStatistics",
    "plan",
]
