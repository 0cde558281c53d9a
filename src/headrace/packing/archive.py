"""Writes an archive, the same bytes for the same contents, and tries whether it works."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from headrace.errors import ConfigurationError
from headrace.packing.contents import MANIFEST

__all__ = ["Archive", "check", "write_archive"]

# Half the time of level 6, for four parts in a hundred more bytes.
_LEVEL = 4
# Python starts in here as Spark starts it, in a folder of this name.
_FOLDER = "environment"
_TRY = """\
import importlib, json, sys
failed = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed[name] = f"{type(error).__name__}: {error}"
files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
print(json.dumps({
    "failed": failed,
    "outside": sorted(file for file in files if file and not file.startswith(sys.prefix + "/")),
}))
"""


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive that was written."""

    path: Path
    size: int
    #: SHA-256 of its bytes, which are the same for the same contents.
    digest: str


def write_archive(
    files: Mapping[str, Path | bytes],
    output: Path,
    *,
    before: Callable[[Path], None] = lambda _: None,
) -> Archive:
    """Write files into a gzip'd tar, in place of one that is there.

    Parameters
    ----------
    files
        Each by its place in the archive.
    output
        The archive; it appears under its name when it is whole.
    before
        Is called with the whole archive before it gets its name; what it raises is the end of it.

    Raises
    ------
    ConfigurationError
        When it cannot be written.
    """
    with _appearing_as(output) as temporary:
        with _told_of(output, temporary), temporary.open("xb") as file:
            hashed = _Hashed(file)
            with (
                gzip.GzipFile("", "wb", _LEVEL, hashed, mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w") as archive,
            ):
                for name in sorted(files, key=lambda name: (name != MANIFEST, name)):
                    _add(archive, name, files[name])
        before(temporary)
        size = temporary.stat().st_size
    return Archive(output, size, hashed.digest.hexdigest())


def check(archive: Path, modules: tuple[str, ...]) -> None:
    """Unpack an archive and import modules with its Python, without anything of this machine.

    Raises
    ------
    ConfigurationError
        When one cannot be imported.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        with _told_of(Path(folder), Path(folder)):
            _unpack(archive, Path(folder) / _FOLDER)
        answer = subprocess.run(
            [f"./{_FOLDER}/bin/python", "-c", _TRY, *modules],
            cwd=folder,
            env={},
            capture_output=True,
            text=True,
            check=False,
        )
    if answer.returncode != 0:
        reason = (answer.stderr.strip().splitlines() or [f"status {answer.returncode}"])[-1]
        message = f"The packed Python does not run: {reason}"
        raise ConfigurationError(message, hint="`--no-check` packs all the same, to look into it.")
    told = json.loads(answer.stdout.splitlines()[-1])
    if told["failed"]:
        name, reason = next(iter(told["failed"].items()))
        message = f"The packed Python cannot import {name}: {reason}."
        hint = "Pack what it lacks, too: --with NAME. `--no-check` packs all the same."
        raise ConfigurationError(message, hint=hint)
    if told["outside"]:
        message = f"The packed Python takes {told['outside'][0]} from this machine."
        raise ConfigurationError(message, hint="`--no-check` packs all the same, to look into it.")


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as packed:
        # Older Pythons have no filters; it is our own archive.
        if hasattr(tarfile, "fully_trusted_filter"):
            packed.extraction_filter = tarfile.fully_trusted_filter
        packed.extractall(folder)  # noqa: S202


def _add(archive: tarfile.TarFile, name: str, source: Path | bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.mtime = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    if isinstance(source, bytes):
        entry.mode = 0o755 if name.startswith("bin/") else 0o644
        entry.size = len(source)
        archive.addfile(entry, io.BytesIO(source))
        return
    with source.open("rb") as file:
        status = os.fstat(file.fileno())
        entry.mode = 0o755 if status.st_mode & 0o100 else 0o644
        entry.size = status.st_size
        archive.addfile(entry, file)


class _Hashed(io.RawIOBase):
    """Passes what is written on to a file, and keeps its digest."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._file.write(data)


@contextmanager
def _appearing_as(output: Path) -> Iterator[Path]:
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        yield temporary
        with _told_of(output, temporary):
            temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _told_of(output: Path, written: Path) -> Iterator[None]:
    """Name the output where what is written cannot be written; what is read names itself."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and not Path(error.filename).is_relative_to(written):
            raise
        message = f"{output} cannot be written: {error.strerror}."
        raise ConfigurationError(message, hint="Make room, or name another place.") from error
