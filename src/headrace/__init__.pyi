from . import (
    errors as errors,
    serdes as serdes,
    transactions as transactions,
)
from .errors import (
    HeadraceError as HeadraceError,
    TopologyError as TopologyError,
)
from .runtime import (
    StateMigration as StateMigration,
    TopologyTestDriver as TopologyTestDriver,
)
from .serdes import (
    Keyed as Keyed,
    Serde as Serde,
)
from .settings import JobSettings as JobSettings
from .spark import (
    JobStatistics as JobStatistics,
    StreamJob as StreamJob,
    TransactionJob as TransactionJob,
    assert_same_on_spark as assert_same_on_spark,
)
from .streams import (
    GlobalTable as GlobalTable,
    KeyedStream as KeyedStream,
    Measure as Measure,
    Stream as Stream,
    StreamBuilder as StreamBuilder,
    Table as Table,
    WindowedStream as WindowedStream,
    WindowedTable as WindowedTable,
    aggregate as aggregate,
    avg as avg,
    collect as collect,
    count as count,
    count_distinct as count_distinct,
    max_ as max_,
    min_ as min_,
    reduce as reduce,
    sum_ as sum_,
    top as top,
)
from .topology import (
    Accumulator as Accumulator,
    BatchRecords as BatchRecords,
    BatchToken as BatchToken,
    Context as Context,
    Fired as Fired,
    Processor as Processor,
    Record as Record,
    Topology as Topology,
    Windowed as Windowed,
    count_window as count_window,
    event_timer as event_timer,
    hopping as hopping,
    list_state as list_state,
    map_state as map_state,
    session as session,
    sliding as sliding,
    tumbling as tumbling,
    value_state as value_state,
    wall_timer as wall_timer,
    window_state as window_state,
)
from .transactions import (
    TransactionTopology as TransactionTopology,
    TransactionTopologyBuilder as TransactionTopologyBuilder,
)
