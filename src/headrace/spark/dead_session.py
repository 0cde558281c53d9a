"""Forgetting a session whose Java process has ended, so that another one can start.

Spark has no call for that: all of its own calls need the process that is gone.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession, SQLContext

if TYPE_CHECKING:
    from datetime import timedelta


_lock = threading.Lock()


def session_is_ours() -> bool:
    """Return whether this process started its session's Java process, and can start another."""
    return _process() is not None


def forget_dead_session() -> bool:
    """Forget a session whose Java process has ended; return whether there was one.

    Several jobs may share a session, and only the first to call finds anything to do.
    """
    with _lock:
        process = _process()
        if process is None or process.poll() is None:
            return False
        context = SparkContext._active_spark_context
        if context is not None:
            # Only its Python side is left, so nothing may call into Java any more.
            context._jsc = None
            context.stop()
        gateway = SparkContext._gateway
        assert gateway is not None
        with contextlib.suppress(Py4JError, OSError):
            gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        SQLContext._instantiatedContext = None
        return True


def end_session(patience: timedelta) -> None:
    """End the session that this process started; kill its Java process if that takes too long.

    Afterwards :func:`forget_dead_session` forgets the session.  Several jobs may share a session,
    and only the first to call finds anything to do.

    Parameters
    ----------
    patience
        How long the Java process may take to end in order.
    """
    with _lock:
        process, context = _process(), SparkContext._active_spark_context
        if process is None or process.poll() is not None or context is None:
            return
        with contextlib.suppress(Py4JError, OSError):
            context.stop()
        assert process.stdin is not None
        # The process ends in order when its input is closed.
        process.stdin.close()
        try:
            process.wait(patience.total_seconds())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _process() -> subprocess.Popen[bytes] | None:
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    return process
