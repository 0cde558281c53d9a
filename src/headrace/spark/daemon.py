"""The process that Spark's Python workers are forked from; it has imported all that tasks need.

Spark's own daemon imports nothing, so each new worker takes a second or more before its first task.
A worker that is forked from this process has every module from the start.
"""

from __future__ import annotations

import gc
import importlib
import os

#: All modules that a worker of a job would import sooner or later.
MODULES = (
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",
    "pandas",
    "rocksdict",
    "headrace.spark.source",
    "headrace.spark.standby",
)


def preload() -> None:
    """Import what tasks need without starting a thread, which a fork would lose.

    Caller: the daemon, before it forks its first worker.
    """
    # Arrow's second allocator, which nobody uses, would start a thread, as would NumPy's BLAS.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    for module in MODULES:
        importlib.import_module(module)
    # Memory pages that no garbage collection touches stay shared with every worker.
    gc.collect()
    gc.freeze()


def _main() -> None:
    from pyspark.daemon import manager

    preload()
    manager()


if __name__ == "__main__":
    _main()
