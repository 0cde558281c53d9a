"""Finds what a Python needs that runs wherever it is unpacked.

Python finds its standard library by searching upward from its executable, and so needs no
installation.  Shared libraries are not found that way: a small script, which stands in for the
executable, says where they are.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from headrace.errors import ConfigurationError
from headrace.packing.distributions import SITE

__all__ = ["interpreter_files", "libraries_of"]

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
    f"{SITE}/_headrace_pack.py": _AT_START,
    f"{SITE}/_headrace_pack.pth": "../../../app\nimport _headrace_pack\n",
    # Debian's Python looks for packages here alone.
    f"{_LIBRARY}/dist-packages/_headrace_pack.pth": (
        f"import site, sys; site.addsitedir(sys.prefix + '/{SITE}')\n"
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
