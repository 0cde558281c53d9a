from .batches import BatchSinkStatistics as BatchSinkStatistics
from .job import StreamJob as StreamJob
from .rocketmq import register as register
from .statistics import (
    JobStatistics as JobStatistics,
    OperatorStatistics as OperatorStatistics,
)
from .transactions import (
    SparkReplay as SparkReplay,
    TransactionJob as TransactionJob,
    assert_same_on_spark as assert_same_on_spark,
)
