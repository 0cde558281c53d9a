"""An archive of the classes that Spark uses, with which its Java process starts in half the time.

Without one, Java reads some fifteen thousand classes out of Spark's jars at every start, checks and
links them; with one it maps a file.  Java itself looks whether an archive fits, and does without
one that does not: another release of Java or Spark makes it useless, never harmful.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from headrace.client import Admin, Client, Producer
from headrace.embedded import embedded_broker
from headrace.errors import JobFailedError
from headrace.java import cache_folders, use_java
from headrace.private import is_private
from headrace.protocol.messages import Message
from headrace.settings import JobSettings
from headrace.spark.dead_session import end_session, forget_dead_session

if TYPE_CHECKING:
    from headrace.java import Java
    from headrace.topology import Topology


JAVA_OPTIONS = "spark.driver.extraJavaOptions"

#: Java remarks on each class that it leaves out, and on an archive that does not fit.
_QUIET = "-Xlog:cds*=off"
#: Options by which a user has decided on archives.
_DECIDED = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-Xshare:")
_LINES = 200
_BATCHES = 4
_PATIENCE = timedelta(minutes=5)


def archive_of(java: Java) -> Path:
    """Name the archive for a Java and for the Spark of this environment, made or not.

    A Java or a Spark that was replaced has another one.

    Raises
    ------
    JobFailedError
        There is no folder for it that only this user can write to.
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
    """Return the options by which Java uses its archive; none where there is none to use.

    Parameters
    ----------
    java
        The Java that will be started.
    given
        Options that the user gives it; what they say on archives stands.
    """
    if any(option in given for option in _DECIDED):
        return ""
    try:
        path = archive_of(java)
    except JobFailedError:
        return ""
    if not is_private(path):
        return ""
    return f'-Xshare:auto "-XX:SharedArchiveFile={path}" {_QUIET}'


def make_archive() -> Path:
    """Run a small job on Spark, let Java keep the classes that it needed, and give the file.

    Raises
    ------
    JavaNotFoundError
        No Java 17 or newer is there.
    JobFailedError
        This Java wrote no archive.
    """
    java = use_java()
    path = archive_of(java)
    with tempfile.TemporaryDirectory(prefix="headrace-archive-", dir=path.parent) as folder:
        made = Path(folder) / "new.jsa"
        options = f'"-XX:ArchiveClassesAtExit={made}" {_QUIET}'
        settings = JobSettings(
            data_dir=Path(folder) / "job",
            master="local[2]",
            partitions=2,
            spark_config={JAVA_OPTIONS: options},
        )
        _run_job(settings)
        # Java writes the archive at its end.
        end_session(_PATIENCE)
        forget_dead_session()
        if not made.is_file():
            raise JobFailedError(
                f"Java {java.version} ({java.home}) wrote no archive of Spark's classes",
                hint="Spark runs without one, and starts more slowly; a full JDK or JRE can write"
                " it, some small runtimes cannot",
            )
        # Others may start at this moment: they see all of the file or none.
        shutil.move(made, path)
    return path


def _run_job(settings: JobSettings) -> None:
    """Count some words: a job of two stages with state, which has the classes of all jobs."""
    from headrace.spark.job import StreamJob

    with embedded_broker(settings.data_dir) as address, Client(address) as client:
        for topic in ("lines", "counts"):
            Admin(client).create_topic(topic, queues=2)
        producer = Producer(client)
        with StreamJob(_word_count(), settings).start() as job:
            for batch in range(_BATCHES):
                producer.send_batch(
                    [Message(topic="lines", body=f"line {batch}".encode())] * _LINES
                )
                job.await_caught_up(_PATIENCE)


def _word_count() -> Topology:
    from headrace import StreamBuilder, serdes

    builder = StreamBuilder("class-archive")
    words = builder.source("lines", serdes.string).flat_map_values(str.split)
    words.key_by(lambda word: word).count().sink("counts", serdes.json)
    return builder.build()


def _changed(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0
