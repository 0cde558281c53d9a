"""Starts Spark's Java process, sees to its end, and keeps two kinds of noise off the terminal.

Everything that Java and Spark's Python workers print comes through: a user's own ``print`` too.
Left out are Java's remark on incubator modules, and the traceback that a worker prints when Spark
closes its connection because it was idle for a minute.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from typing import IO, TYPE_CHECKING

from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from headrace.spark.family import MARK, family_mark, start_reaper
from headrace.watched import watched_thread

if TYPE_CHECKING:
    from pathlib import Path

    from py4j.java_gateway import JavaGateway

__all__ = ["NoiseFilter", "launch_quietly", "shown_settings"]

_TRACEBACK = "Traceback (most recent call last):\n"
_INCUBATOR = "WARNING: Using incubator modules"
#: What Spark takes for a secret, unless it is told otherwise.
_REDACTED = "(?i)secret|password|token|access[.]?key|credential"
_BROKEN_PIPE = "BrokenPipeError: [Errno 32] Broken pipe\n"


def launch_quietly(conf: SparkConf, folder: Path | None = None) -> JavaGateway:
    """Start the Java process of a session; it and its Python workers end with this process.

    Parameters
    ----------
    conf
        Settings of the session.  Secrets in it are not on the command line of the process: the
        session must set them in it.
    folder
        The folder that it works in; this process's by default.
    """
    conf.set(f"spark.executorEnv.{MARK}", family_mark())
    start_reaper()
    shown = SparkConf(loadDefaults=False).setAll(shown_settings(conf))
    streams = {"stderr": subprocess.PIPE, "cwd": folder}
    gateway = launch_gateway(shown, streams)  # type: ignore[no-untyped-call]
    errors: IO[bytes] = gateway.proc.stderr
    watched_thread(
        partial(_forward, errors),
        name="headrace-spark-stderr",
        # Java would wait for ever for somebody to read what it prints.
        on_failure=lambda _error: errors.close(),
    ).start()
    return gateway


def shown_settings(conf: SparkConf) -> list[tuple[str, str]]:
    """Return the settings but those that Spark's pages hide, which it tells by their names."""
    hidden = re.compile(conf.get("spark.redaction.regex", _REDACTED))
    return [(name, value) for name, value in conf.getAll() if not hidden.search(name)]


def _forward(stream: IO[bytes]) -> None:
    noise = NoiseFilter()
    for line in stream:
        sys.stderr.write(noise.feed(line.decode(errors="replace")))
        sys.stderr.flush()


class NoiseFilter:
    r"""Takes lines and gives what is worth showing.

    Several workers may print at once, so their tracebacks come interleaved.

    Examples
    --------
    >>> noise = NoiseFilter()
    >>> noise.feed("Traceback (most recent call last):\n")
    ''
    >>> noise.feed('  File "user.py", line 1, in <module>\n')
    'Traceback (most recent call last):\n  File "user.py", line 1, in <module>\n'
    """

    def __init__(self) -> None:
        self._held = ""
        self._begun = 0

    def feed(self, line: str) -> str:
        """Give the line, with what was held back before it, or nothing."""
        if line == _TRACEBACK:
            self._held += line
            self._begun += 1
            return ""
        if line.startswith(_INCUBATOR):
            return ""
        if self._begun and "pyspark/daemon.py" in line:
            self._held += line
            return ""
        if self._begun and line == _BROKEN_PIPE:
            self._begun -= 1
            if not self._begun:
                self._held = ""
            return ""
        shown, self._held, self._begun = self._held + line, "", 0
        return shown
