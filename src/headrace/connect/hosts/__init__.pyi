from .channel import (
    Asked as Asked,
    PolledBatch as PolledBatch,
    TaskChannel as TaskChannel,
)
from .launcher import (
    HostSettings as HostSettings,
    ProcessLauncher as ProcessLauncher,
)
