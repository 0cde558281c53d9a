"""Looks for the master of a standalone cluster before Spark does, which takes a minute for it."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from datetime import timedelta

#: Seconds between two looks for one that starts.
_PAUSE = 0.2
#: A file that no master has.
_NAME = b"/jars/headrace"
#: A frame of Spark's transport: its length, its type, then what it asks for.  Everyone may ask for
#: a file, before any secret is shown.
_HEAD, _STREAM_REQUEST, _STREAM_ANSWERS = struct.Struct(">qb"), 6, (7, 8)
_REQUEST = _HEAD.pack(_HEAD.size + 4 + len(_NAME), _STREAM_REQUEST) + struct.pack(
    f">i{len(_NAME)}s", len(_NAME), _NAME
)


def find_master(master: str, timeout: timedelta, patience: timedelta = timedelta(0)) -> None:
    """Return when one of the masters answers in the words of Spark's transport.

    Parameters
    ----------
    master
        As Spark has it, ``spark://HOST:PORT,HOST:PORT``; others are not looked for.
    timeout
        How long each of them has.
    patience
        How long one that does not listen yet may take until it does.

    Raises
    ------
    OSError
        None answers; what each does instead.
    """
    if not master.startswith("spark://"):
        return
    until = time.monotonic() + patience.total_seconds()
    while failures := _failures(master.removeprefix("spark://").split(","), timeout):
        starts = any(isinstance(error, ConnectionRefusedError) for error in failures.values())
        if not starts or time.monotonic() >= until:
            told = ", ".join(f"{place} ({error})" for place, error in failures.items())
            raise OSError(f"no master answers at {told}")
        time.sleep(_PAUSE)


def _failures(places: list[str], timeout: timedelta) -> dict[str, Exception]:
    """Ask each in turn until one answers; give what the others do, nothing where one does."""
    failures: dict[str, Exception] = {}
    for place in places:
        host, _, port = place.rpartition(":")
        try:
            _ask((host.strip("[]"), int(port)), timeout.total_seconds())
        except (OSError, ValueError) as error:
            failures[place] = error
        else:
            return {}
    return failures


def _ask(address: tuple[str, int], wait: float) -> None:
    with socket.create_connection(address, wait) as connection:
        connection.sendall(_REQUEST)
        try:
            head = connection.makefile("rb").read(_HEAD.size)
        except ConnectionResetError:
            head = b""
        except TimeoutError:
            raise OSError(f"it takes connections, and has said nothing for {wait:g} s") from None
    if len(head) == _HEAD.size and _HEAD.unpack(head)[1] in _STREAM_ANSWERS:
        return
    # With spark.ssl.rpc.enabled a master hangs up on whoever does not encrypt.
    if not _speaks_tls(address, wait):
        raise OSError("something else than a master of Spark is there")


def _speaks_tls(address: tuple[str, int], wait: float) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(address, wait) as connection:
            context.wrap_socket(connection).close()
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
    return True
