from .channel import (
    PolledBatch as PolledBatch,
    TaskChannel as TaskChannel,
)
from .launcher import (
    HostSettings as HostSettings,
    ProcessLauncher as ProcessLauncher,
)
