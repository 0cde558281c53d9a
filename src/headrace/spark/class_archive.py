"""An archive of the classes that Spark uses, which halves the start time of its Java process.

Without an archive, Java reads, checks and links some fifteen thousand classes from Spark's jars at
every start; with one it maps a file.  Java checks by itself whether an archive fits and ignores one
that does not: another release of Java or Spark makes an archive useless, never harmful.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import pyspark

from headrace.errors import JobFailedError
from headrace.java import Java, cache_folders
from headrace.private import is_private

JAVA_OPTIONS = "spark.driver.extraJavaOptions"

#: Java would log each class that it leaves out, and an archive that does not fit.
QUIET = "-Xlog:cds*=off"
#: Options with which a user has already decided about archives.
_DECIDED = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-Xshare:")


def archive_of(java: Java) -> Path:
    """Return the path of the archive for a Java and this environment's Spark, made or not.

    The path changes when Java or Spark is replaced.

    Raises
    ------
    JobFailedError
        There is no folder for it to which only this user can write.
    """
    jars = Path(pyspark.__file__).parent / "jars"
    parts = [java.home.resolve(), jars.resolve()]
    dated = [str(part) for part in parts] + [str(_changed(java.home / "lib" / "modules"))]
    dated.append(str(_changed(jars)))
    name = hashlib.sha256("\n".join(dated).encode()).hexdigest()[:16]
    paths = [folder / f"spark-{pyspark.__version__}-{name}.jsa" for folder in cache_folders()]
    if not paths:
        raise JobFailedError(
            "there is no folder for an archive of Spark's classes that only this user can write to",
            hint="set XDG_CACHE_HOME to a folder of your own",
        )
    return next((path for path in paths if path.is_file()), paths[0])


def archive_options(java: Java, given: str) -> str:
    """Return the options with which Java uses its archive; empty if there is none to use.

    Parameters
    ----------
    java
        The Java that will be started.
    given
        The user's options for Java; if they concern archives, they take precedence.
    """
    if any(option in given for option in _DECIDED):
        return ""
    try:
        path = archive_of(java)
    except JobFailedError:
        return ""
    if not is_private(path):
        return ""
    return f'-Xshare:auto "-XX:SharedArchiveFile={path}" {QUIET}'


def _changed(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0
