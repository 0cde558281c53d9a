"""Folders, files and addresses that nobody else can reach, and that nobody else can have made.

A place that another user can write to is no place for what is run, loaded or believed: whoever
makes the folder first decides what lies in it.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.errors import UnsafeFileError

_FOLDER, _FILE = 0o700, 0o600
_OTHERS = 0o077
_OF_ROOT: Final = 0


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only.

    Examples
    --------
    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def owners_folder(path: Path) -> Path:
    """Return a folder that only its owner can enter; make it, and what is above it, where missing.

    One of this user's that others could look into is closed to them.
    """
    _make(path)
    found = path.stat()
    if found.st_uid == os.getuid() and found.st_mode & _OTHERS:
        path.chmod(_FOLDER)
    return path


def private_folder(path: Path) -> Path:
    """Return a folder as :func:`owners_folder` does, of which only this user can be the owner.

    Raises
    ------
    UnsafeFileError
        Somebody else has made it, or could replace it.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     oct(private_folder(Path(folder, "a", "b")).stat().st_mode & 0o777)
    '0o700'
    """
    _make(path)
    if problem := _problem(path):
        raise UnsafeFileError(
            f"{path} cannot hold what only this user may write: {problem}",
            hint="name a folder of your own, such as one in your home folder, or remove that one",
        )
    return owners_folder(path)


def users_folder(name: str) -> Path:
    """Return a folder of this user's in the folder for temporary files, which all can write to.

    Raises
    ------
    UnsafeFileError
        Somebody else has made one of this name.
    """
    own = private_folder(Path(tempfile.gettempdir(), f"headrace-{os.getuid()}"))
    return private_folder(own / name)


def is_private(path: Path) -> bool:
    """Return whether a path exists, and nobody but this user, or root, can have made it.

    Its own folder counts as well: whoever may write there can put another file in its place.

    Examples
    --------
    >>> is_private(Path("/nowhere"))
    False
    """
    with suppress(OSError):
        return not _problem(path)
    return False


def owners_secret(path: Path, size: int) -> bytes:
    """Return the secret that a file holds; make both where there is none.

    Raises
    ------
    UnsafeFileError
        Others could have made the file, or can read it.
    """
    private_folder(path.parent)
    if not path.exists():
        draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}.draft")
        with open(draft, "xb", opener=_owners_only) as file:
            file.write(secrets.token_bytes(size))
            file.flush()
            os.fsync(file.fileno())
        try:
            # Of two that make one, the first one's counts.
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink()
    problem = _problem(path)
    if not problem and path.stat().st_mode & _OTHERS:
        problem = "others can read it"
    if problem:
        raise UnsafeFileError(
            f"the secret in {path} is none: {problem}",
            hint="remove the file, and all that was signed with it is refused; or give the secret"
            " by a setting",
        )
    return path.read_bytes()


def _make(path: Path) -> None:
    if not path.is_dir():
        _make(path.parent)
        with suppress(FileExistsError):
            path.mkdir(_FOLDER)


def _owners_only(path: str, flags: int) -> int:
    return os.open(path, flags, _FILE)


def _problem(path: Path) -> str:
    """Return how somebody else could have made what lies at a path; empty if they could not."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        return "it is a link"
    if found.st_uid not in (os.getuid(), _OF_ROOT):
        return f"it belongs to user {found.st_uid}, and this is user {os.getuid()}"
    if found.st_mode & 0o022:
        return f"others can write to it (mode {stat.S_IMODE(found.st_mode):o})"
    folder = path.absolute().parent
    around = folder.stat()
    # Where the sticky bit is, as in /tmp, only owners replace what is theirs.
    if around.st_mode & 0o002 and not around.st_mode & stat.S_ISVTX:
        return f"others can write to {folder}"
    if around.st_uid not in (os.getuid(), _OF_ROOT) and not around.st_mode & stat.S_ISVTX:
        return f"{folder} belongs to user {around.st_uid}"
    return ""
