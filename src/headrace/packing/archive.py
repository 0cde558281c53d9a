"""Writes an archive, the same bytes for the same contents, and tries whether it works."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from headrace.errors import ConfigurationError
from headrace.packing import distributions

# Finds what a Python needs that runs wherever it is unpacked.
#
# Python finds its standard library by searching upward from its executable, and so needs no
# installation.  Shared libraries are not found that way: a small script, which stands in for the
# executable, says where they are.

_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
#: Where Python looks for its standard library: lib, or lib64 on some systems.
_LIBRARY = f"{sys.platlibdir}/{_VERSION}"

# Not asked for by programs that run, or of no use without what is left out.
_LEFT_OUT = re.compile(
    r"""
    (.*/)?(__pycache__|tests?|idle_test)/
    | (dist-packages|site-packages|config-[^/]+)/
    | (ensurepip|idlelib|lib2to3|tkinter|turtledemo|venv)/
    | (turtle|sitecustomize|usercustomize)\.py$
    | lib-dynload/(_tkinter|_test\w*|_ctypes_test|_xxtestfuzz|nis|xxlimited\w*)\.
    | .*\.(a|pyc)$
    """,
    re.VERBOSE,
)
# The libraries of glibc belong to the machine: they must fit its loader and its kernel.
_OF_THE_SYSTEM = re.compile(
    r"(ld-linux.*|lib(BrokenLocale|anl|c|c_malloc_debug|dl|m|mvec|nss_\w+|pthread|resolv|rt"
    r"|thread_db|util))\.so\.[0-9]+$|libnsl\.so\.1$"
)
_FOUND = re.compile(r"^\s+(\S+) => (/.*) \(0x[0-9a-f]+\)$", re.MULTILINE)

_START = f"""\
#!/bin/sh
# Written by headrace pack: starts the Python beside it with the shared libraries in lib.
program=$0
while [ -h "$program" ]; do
    target=$(readlink "$program")
    case $target in
        /*) program=$target ;;
        *) program=${{program%/*}}/$target ;;
    esac
done
root=$(CDPATH='' cd -- "${{program%/*}}/.." && pwd -P) || exit
export LD_LIBRARY_PATH="$root/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
# Packages of this machine would take the place of packed ones.
export PYTHONNOUSERSITE=1
unset PYTHONHOME
exec "$root/bin/{_VERSION}" "$@"
"""
_HEADRACE = """\
#!/bin/sh
exec "$(dirname "$0")/python" -m headrace "$@"
"""
_AT_START = '''\
"""Written by headrace pack: programs of this machine get its own libraries, not the packed ones."""

import os
import sys

_own, _, _rest = os.environ.get("LD_LIBRARY_PATH", "").partition(":")
if _own == os.path.join(sys.prefix, "lib"):
    if _rest:
        os.environ["LD_LIBRARY_PATH"] = _rest
    else:
        del os.environ["LD_LIBRARY_PATH"]
    # Another Python like this one begins as this one did.
    sys.executable = os.path.join(sys.prefix, "bin", "python")
'''
_HOOKS = {
    f"{distributions.SITE}/_headrace_pack.py": _AT_START,
    f"{distributions.SITE}/_headrace_pack.pth": "../../../app\nimport _headrace_pack\n",
    # Debian's Python looks for packages here alone.
    f"{_LIBRARY}/dist-packages/_headrace_pack.pth": (
        f"import site, sys; site.addsitedir(sys.prefix + '/{distributions.SITE}')\n"
    ),
}


def interpreter_files() -> dict[str, Path | bytes]:
    """Return the Python that runs, and its standard library, by their places in an archive.

    Of a virtual environment that is the Python it was made from.

    Raises
    ------
    ConfigurationError
        When shared libraries cannot be looked up here.
    """
    executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    files: dict[str, Path | bytes] = {
        "bin/headrace": _HEADRACE.encode(),
        "bin/python": _START.encode(),
        f"bin/{_VERSION}": executable,
    }
    library = dict(_standard_library())
    files |= {f"{_LIBRARY}/{name}": path for name, path in library.items()}
    # Python asks for the folder, also where all extension modules are built in.
    files.setdefault(f"{_LIBRARY}/lib-dynload/.keep", b"")
    files |= {name: text.encode() for name, text in _HOOKS.items()}
    modules = [path for path in library.values() if path.suffix == ".so"]
    return files | libraries_of([executable, *modules], inside=())


def libraries_of(binaries: Iterable[Path], inside: Collection[Path]) -> dict[str, Path]:
    """Return the shared libraries that binaries are linked to, by their places in an archive.

    Left out are those of the system's C library, and those that lie in given folders, as they are
    packed anyway.

    Raises
    ------
    ConfigurationError
        When there is no ``ldd``.
    """
    given = sorted(str(path) for path in binaries)
    if not given:
        return {}
    try:
        answer = subprocess.run(["ldd", *given], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        message = "There is no ldd here, which tells the shared libraries of Python."
        hint = "Pack on a Linux that has it; it comes with the C library (libc-bin, glibc-common)."
        raise ConfigurationError(message, hint=hint) from None
    return {
        f"lib/{name}": Path(path).resolve()
        # Of two of one name the interpreter's is taken: the first in the order of the answer.
        for name, path in reversed(_FOUND.findall(answer.stdout))
        if not _OF_THE_SYSTEM.match(name)
        and not any(Path(path).resolve().is_relative_to(folder) for folder in inside)
    }


def _standard_library() -> Iterator[tuple[str, Path]]:
    folder = Path(sysconfig.get_path("stdlib"))
    yield from _walked(folder, "")
    # Extension modules lie apart where libraries are told from what depends on the machine.
    for other in map(Path, sys.path):
        if other.name == "lib-dynload" and not other.is_relative_to(folder):
            yield from _walked(other, "lib-dynload/")


def _walked(folder: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    for each in sorted(folder.iterdir()):
        name = prefix + each.name
        if each.is_dir():
            if not _LEFT_OUT.match(f"{name}/"):
                yield from _walked(each, f"{name}/")
        elif each.is_file() and not _LEFT_OUT.match(name):
            yield name, each


# Gathers what an archive for a user's file holds.

MANIFEST = "headrace-pack.json"
"""The file in an archive that tells what is in it."""

# What a worker imports whatever the job is.
_ALWAYS = ("headrace.spark", "headrace.cli.app", "pyspark.daemon", "pyspark.worker")
_SHARED_OBJECT = re.compile(r".*\.so(\.\d+)*$")


@dataclass(frozen=True, slots=True)
class Contents:
    """What goes into an archive."""

    #: Each file by its place in the archive; the text of those that are made for it.
    files: dict[str, Path | bytes]
    #: The version of each distribution, by its name.
    versions: dict[str, str]
    #: The modules that must import where the archive is unpacked.
    modules: tuple[str, ...]


def contents_of(
    program: Path,
    loaded: Mapping[str, ModuleType],
    found: distributions.Distributions,
    *,
    extra: Iterable[str] = (),
) -> Contents:
    """Gather what a user's file needs.

    Parameters
    ----------
    program
        The user's file.
    loaded
        The modules that loading it has imported, by name.
    found
        What is installed here.
    extra
        More distributions, or modules of them, that are imported only while the job runs.

    Raises
    ------
    ConfigurationError
        When something is missing here, or cannot be packed.
    """
    if sys.platform != "linux":
        message = f"An archive is for Linux, and cannot be packed on {platform.system()}."
        raise ConfigurationError(message, hint="Pack on a machine like those of the cluster.")
    app = {f"app/{program.name}": program}
    owners: set[str] = set()
    imported: set[str] = set()
    for name, module in loaded.items():
        file = Path(getattr(module, "__file__", None) or "")
        top = name.partition(".")[0]
        if not file.is_file() or file.samefile(program) or _is_of_python(top, file):
            continue
        if (owner := found.owner_of(name, file)) is None:
            app[_place_of_module(name, file)] = file
        else:
            owners.add(owner)
            imported.add(top)
    named = [found.named(name) for name in extra]
    packed = distributions.requirement_closure(["headrace", *sorted(owners), *named], found.find)
    for name in distributions.requirement_closure(named, found.find) if named else ():
        imported |= {
            each for each in distributions.modules_of(packed[name]) if not each.startswith("_")
        }
    site: dict[str, Path] = {}
    for distribution in packed.values():
        site |= distributions.files_of(distribution)
    versions = {each.name: each.version for each in packed.values()}
    roots = {Path(str(each.locate_file(""))).resolve() for each in packed.values()}
    binaries = [path for place, path in site.items() if _SHARED_OBJECT.match(place)]
    files = {**libraries_of(binaries, roots), **interpreter_files(), **site, **app}
    files[MANIFEST] = _manifest(program, versions)
    return Contents(files, versions, (*_ALWAYS, *sorted(imported)))


def platform_of() -> dict[str, str]:
    """Return what a worker's machine must be like: its processor and its C library."""
    libc = " ".join(platform.libc_ver())
    if "CS_GNU_LIBC_VERSION" in os.confstr_names:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or libc
    return {"machine": platform.machine(), "libc": libc, "python": platform.python_version()}


def _is_of_python(name: str, file: Path) -> bool:
    """Return whether a module is of the standard library, even if its name is not listed."""
    return name in sys.stdlib_module_names or file.parent == Path(sysconfig.get_path("stdlib"))


def _place_of_module(name: str, file: Path) -> str:
    """Return the place at which a module is found by its name, below ``app``."""
    parents = name.split(".")
    if file.name.partition(".")[0] != "__init__":
        parents.pop()
    return "/".join(("app", *parents, file.name))


def _manifest(program: Path, versions: Mapping[str, str]) -> bytes:
    told = {
        "headrace": versions["headrace"],
        "platform": platform_of(),
        "program": f"app/{program.name}",
        "distributions": dict(sorted(versions.items())),
    }
    return f"{json.dumps(told, indent=2)}\n".encode()


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
    """Name the output in errors of writing it; errors of reading name what was read."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and not Path(error.filename).is_relative_to(written):
            raise
        message = f"{output} cannot be written: {error.strerror}."
        raise ConfigurationError(message, hint="Make room, or name another place.") from error
