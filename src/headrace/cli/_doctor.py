"""``headrace doctor``: says what this machine has and what to do about what is wrong."""

from __future__ import annotations

import importlib
import os
import shutil
import socket
import sys
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from headrace.cli._cluster import settings_from
from headrace.cli._terminal import terminal
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.settings import JobSettings


# What ``headrace doctor`` looks at: each check returns findings, and never raises.

_MINIMUM_PYTHON = (3, 11)
_SPARK = "4.3"
_MIB = 1024 * 1024
_BROKER_PORT = 9876
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  Spark's scratch space, not a file of ours

Verdict = Literal["good", "doubtful", "wrong"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    #: What was looked at.
    subject: str
    verdict: Verdict
    #: What was found.
    text: str
    #: What to do about it.
    hint: str | None = None


def find_all(settings: JobSettings) -> list[CheckResult]:
    """Check everything that a job needs on this machine."""
    return [
        python(),
        java(),
        spark(),
        *class_archive(),
        *libraries(),
        broker(settings),
        ports(),
        disk(settings.data_dir),
        shared_memory(),
    ]


def python() -> CheckResult:
    """Check the interpreter."""
    version = ".".join(map(str, sys.version_info[:3]))
    text = f"{version} ({sys.executable})"
    if sys.version_info < _MINIMUM_PYTHON:
        return CheckResult("Python", "wrong", text, "Install Python 3.11 or newer.")
    return CheckResult("Python", "good", text)


def java() -> CheckResult:
    """Look for a Java that Spark can run on."""
    from headrace.java import find_java

    try:
        found = find_java()
    except HeadraceError as error:
        return CheckResult("Java", "wrong", error.message, error.hint)
    return CheckResult("Java", "good", f"{found.version}, by {found.origin} ({found.home})")


def spark() -> CheckResult:
    """Check PySpark, and look for a Spark of the system that would be used instead."""
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return CheckResult("Spark", "wrong", "PySpark is not installed.", "pip install headrace")
    if not version.startswith(f"{_SPARK}."):
        hint = f"Install the one it is made for: pip install 'pyspark=={_SPARK}.*'"
        return CheckResult("Spark", "doubtful", f"PySpark {version}", hint)
    if home := os.environ.get("SPARK_HOME"):
        hint = f"Unset SPARK_HOME, unless the Spark there is {version} too."
        return CheckResult(
            "Spark", "doubtful", f"PySpark {version}, but SPARK_HOME is {home}", hint
        )
    return CheckResult("Spark", "good", f"PySpark {version}")


def class_archive() -> list[CheckResult]:
    """Check whether there is an archive of classes with which Spark starts faster."""
    from headrace.java import find_java
    from headrace.private import is_private

    try:
        from headrace.spark.class_archive import archive_of

        path = archive_of(find_java())
    except (HeadraceError, ImportError):
        # The check of Java, or that of Spark, has said so.
        return []
    if is_private(path):
        return [CheckResult("archive", "good", str(path))]
    hint = "Once, for starts in half the time: headrace prepare"
    return [
        CheckResult("archive", "doubtful", "Spark's classes are read anew at every start.", hint)
    ]


def libraries() -> list[CheckResult]:
    """Import packages with compiled code, which can be installed and yet fail to load."""
    findings = []
    for name in ("pyarrow", "rocksdict"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            hint = f"Install it again: pip install --force-reinstall {name}"
            findings.append(CheckResult(name, "wrong", f"It cannot be loaded: {error}", hint))
        else:
            findings.append(CheckResult(name, "good", metadata.version(name)))
    return findings


def broker(settings: JobSettings) -> CheckResult:
    """Check that the broker that the settings name answers."""
    from headrace.embedded import running_broker

    address = settings.namesrv
    if address is None:
        running = running_broker(settings.data_dir)
        if running is None:
            text = f"None runs on {settings.data_dir}; headrace run starts one when it needs it."
            return CheckResult("broker", "good", text)
        address = running.address
    return _ask_broker(address, settings)


def _ask_broker(address: str, settings: JobSettings) -> CheckResult:
    from headrace.client import Client, ClientSettings

    limits = ("connect_timeout", "request_timeout", "retry_timeout")
    own = ClientSettings(
        **settings.connection | dict.fromkeys(limits, timedelta(seconds=3)),
    )
    try:
        with Client(address, own) as client:
            brokers = client.brokers()
    except HeadraceError as error:
        hint = f"Is the address right, and does a broker run there? {error.hint or ''}".strip()
        return CheckResult("broker", "wrong", error.message, hint)
    if not brokers:
        hint = "Start a broker that registers with this name server."
        return CheckResult("broker", "wrong", f"The name server {address} knows no broker.", hint)
    names = ", ".join(f"{name} at {place}" for name, place in brokers.items())
    return CheckResult("broker", "good", f"{address} answers: {names}")


def ports() -> CheckResult:
    """Check whether ports can be opened on loopback, and whether the broker's usual one is free."""
    if problem := _cannot_listen(0):
        hint = "Allow local connections on 127.0.0.1: Spark and the embedded broker need them."
        return CheckResult("ports", "wrong", f"No port can be opened on 127.0.0.1: {problem}", hint)
    if _cannot_listen(_BROKER_PORT):
        text = f"Port {_BROKER_PORT}, the usual one of `headrace broker`, is in use."
        hint = "That is right when a broker runs there; otherwise give another one with --port."
        return CheckResult("ports", "doubtful", text, hint)
    return CheckResult("ports", "good", f"{_BROKER_PORT} is free on 127.0.0.1")


def _cannot_listen(port: int) -> str | None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except OSError as error:
            return error.strerror or str(error)
    return None


def disk(data_dir: Path) -> CheckResult:
    """Check whether the data folder can be written, and how much fits."""
    folder = data_dir.absolute()
    while not folder.exists():
        folder = folder.parent
    subject = "disk"
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        text = f"{data_dir} cannot be written: {error.strerror}."
        return CheckResult(subject, "wrong", text, "Choose another folder with --data-dir.")
    free = shutil.disk_usage(folder).free // _MIB
    text = f"{free:,} MiB free for {data_dir}"
    hint = "Free some space, or choose another folder with --data-dir."
    if free < 256:
        return CheckResult(subject, "wrong", text, hint)
    return CheckResult(
        subject, "doubtful" if free < 2048 else "good", text, hint if free < 2048 else None
    )


def shared_memory() -> CheckResult:
    """Check how much room there is for Spark's scratch files in memory."""
    subject = "scratch"
    if not _SHARED_MEMORY.is_dir():
        hint = "Batches take longer without it; nothing else changes."
        return CheckResult(subject, "doubtful", f"There is no {_SHARED_MEMORY}.", hint)
    free = shutil.disk_usage(_SHARED_MEMORY).free // _MIB
    text = f"{free:,} MiB free in {_SHARED_MEMORY}"
    if free < 32:
        hint = "Give the machine or container more, for example docker run --shm-size=256m."
        return CheckResult(subject, "doubtful", text, hint)
    return CheckResult(subject, "good", text)


_MARKS = {"good": ("✓", "green"), "doubtful": ("!", "yellow"), "wrong": ("✗", "bold red")}


def doctor() -> None:
    """Check Python, Java, Spark, the broker, ports and disk; exit status 1 when one is wrong."""
    findings = find_all(settings_from())
    console = terminal()
    for finding in findings:
        console.print(_line(finding))
    wrong = [finding.subject for finding in findings if finding.verdict == "wrong"]
    if wrong:
        console.print(f"\nTo put right: {', '.join(wrong)}.", style="bold red")
        raise typer.Exit(1)
    console.print("\nReady to run.", style="bold green")


def _line(finding: CheckResult) -> object:
    from rich.text import Text

    mark, style = _MARKS[finding.verdict]
    text = Text.assemble((mark, style), f" {finding.subject:<10} ", finding.text)
    if finding.hint is not None:
        text.append("\n             → ", "cyan").append(finding.hint)
    return text
