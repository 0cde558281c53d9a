"""Processes that sleep, with variables of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

__all__ = ["sleeping"]

_SLEEP = "print(flush=True); import time; time.sleep(60)"


@contextlib.contextmanager
def sleeping(program: str = _SLEEP, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the block is left; it has printed a line by the beginning."""
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()
