"""A Java process that lives as long as the tests, and the commands that it takes."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tests.clusters import SCRIPT

__all__ = ["JavaError", "JavaProcess", "running_java"]

_FOLDER = Path(__file__).parent


class JavaError(AssertionError):
    """What a Java client threw."""

    def __init__(self, text: str, kind: str, code: int | None) -> None:
        super().__init__(text)
        #: Name of the exception's class.
        self.kind = kind
        #: The broker's response code, if it refused something.
        self.code = code


class JavaProcess:
    """One Java process: commands go in, answers come in any order."""

    def __init__(self, home: Path) -> None:
        self._log = (home / "java.err").open("w")
        self._process = subprocess.Popen(
            [SCRIPT, "driver", _FOLDER, home],
            # Some commands of mqadmin write files where they stand.
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
        )
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="java-answers", daemon=True)
        self._reader.start()

    def start(self, operation: str, /, **fields: object) -> Future[Any]:
        """Give a command; its result comes later."""
        number = next(self._numbers)
        given = {name: value for name, value in fields.items() if value is not None}
        line = json.dumps({"id": number, "op": operation} | given)
        future: Future[Any] = Future()
        with self._lock:
            self._waiting[number] = future
            assert self._process.stdin is not None
            self._process.stdin.write(line + "\n")
        return future

    def ask(self, operation: str, /, *, wait: float = 60, **fields: object) -> Any:
        """Give a command and wait for its result."""
        return self.start(operation, **fields).result(wait)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._lock:
                future = self._waiting.pop(answer["id"])
            error = answer.get("error")
            if error is None:
                future.set_result(answer.get("result"))
            else:
                future.set_exception(JavaError(error["text"], error["kind"], error.get("code")))
        with self._lock:
            for future in self._waiting.values():
                future.set_exception(JavaError("the Java process has ended", "EOF", None))
            self._waiting.clear()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._reader.join(10)
        self._process.stdout.close()
        self._log.close()


@contextlib.contextmanager
def running_java(home: Path) -> Iterator[JavaProcess]:
    """Run the process, with a folder for what its clients keep."""
    process = JavaProcess(home)
    try:
        yield process
    finally:
        process.close()
