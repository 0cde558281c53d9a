"""Files that Spark writes on the driver's machine: none of them starts a process.

Spark notes the begin and the end of every batch in a folder of its own.  Hadoop's class for local
files sets the permissions of each by the program ``chmod``, where its native library is missing: four
processes a batch.  Java has a call for that.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["write_without_processes"]

logger = logging.getLogger(__name__)

_IMPLEMENTATION = "fs.file.impl"
_CLASS = "headrace.LocalFiles"
_SOURCE = """
package headrace;

import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends LocalFileSystem {
    public LocalFiles() {
        super(new Raw());
    }

    public static class Raw extends RawLocalFileSystem {
        public void setPermission(Path path, FsPermission given) throws java.io.IOException {
            if (given.getStickyBit()) {
                super.setPermission(path, given);
            } else {
                Files.setPosixFilePermissions(
                    pathToFile(path).toPath(), PosixFilePermissions.fromString(given.toString()));
            }
        }
    }
}
"""


def write_without_processes(context: SparkContext) -> None:
    """Have Java itself set the permissions of local files, where Hadoop would start a program for that.

    A class that the user has named stays.

    Caller: whoever has just started Spark; nobody has files open by Hadoop's class yet.
    """
    java: Any = context._jvm  # noqa: SLF001 - Spark's Python has no face for it
    try:
        if java.org.apache.hadoop.io.nativeio.NativeIO.isAvailable():
            return
        conf = java.org.apache.hadoop.conf.Configuration(context._jsc.hadoopConfiguration())  # noqa: SLF001
        if conf.get(_IMPLEMENTATION) is not None:
            return
        # Spark compiles its own plans by the same compiler.
        compiler = java.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(java.Thread.currentThread().getContextClassLoader())
        compiler.cook(_SOURCE)
        conf.setClassLoader(compiler.getClassLoader())
        conf.set(_IMPLEMENTATION, _CLASS)
        # There is one for all who ask in this process: the first that was made.
        files, place = java.org.apache.hadoop.fs.FileSystem, java.java.net.URI("file:///")
        files.get(place, conf).close()
        files.get(place, conf)
    except (Py4JError, TypeError) as error:
        # Another Spark may have other classes: then its files take the time that they take.
        logger.info("Spark sets the permissions of local files by chmod: %s", error)
