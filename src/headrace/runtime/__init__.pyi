from .state.interface import (
    StateStore as StateStore,
    StorePlace as StorePlace,
)
from .state.steps import StateMigration as StateMigration
from .state.store import (
    LayeredStore as LayeredStore,
    MemoryStore as MemoryStore,
)
from .state.views import StateView as StateView
from .testing import (
    TestInput as TestInput,
    TestOutput as TestOutput,
    TestRecord as TestRecord,
    TestState as TestState,
    TopologyTestDriver as TopologyTestDriver,
)
