"""The process that Spark's Python workers are forked from, with all that a job's tasks import.

Spark's own daemon imports nothing, so that each new worker takes a second or more before its first
task.  Forked from this one, a worker starts with everything in place.
"""

from __future__ import annotations

import gc
import importlib
import os

#: What a worker that runs tasks of a job has imported in the end.
MODULES = (
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",
    "pandas",
    "rocksdict",
    "headrace.spark.source",
    "headrace.spark.source",
    "headrace.spark.standby",
)


def preload() -> None:
    """Import what tasks need, without starting a thread: a fork would leave it behind.

    Caller: the daemon, before it forks its first worker.
    """
    # Arrow's second allocator, which nobody uses, has a thread; so has NumPy's linear algebra.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    for module in MODULES:
        importlib.import_module(module)
    # Pages that no collection touches stay shared with every worker.
    gc.collect()
    gc.freeze()


def _main() -> None:
    from pyspark.daemon import manager

    preload()
    manager()


if __name__ == "__main__":
    _main()
