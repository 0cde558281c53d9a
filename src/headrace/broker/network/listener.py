"""The port: takes connections within limits, and finds out by the first byte what they speak."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import resource
import shutil
import socket
import ssl
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import ProtocolError, SettingsError
from headrace.protocol.codes import ResponseCode
from headrace.protocol.frames import FrameBuffer, encode
from headrace.quiet_log import QuietLog

if TYPE_CHECKING:
    from headrace.broker.network.connection import Connection
    from headrace.broker.settings import BrokerSettings, Limits, TlsMode


# File descriptors: how many a process may have, and how many of them connections may take.

#: So many are kept for the files of the store.
_FOR_FILES = 256


def raise_limit() -> None:
    """Allow this process as many descriptors as the system lets it have.

    Caller: the start of a process that is a broker and nothing else.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_connections(wanted: int) -> int:
    """Cut a number of connections to what leaves the store its files.

    >>> 0 < most_connections(10**9) < 10**9
    True
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(soft // 2, soft - _FOR_FILES - soft // 8))


# The broker's certificate: one that is given, or one that it makes for itself.

_DAYS = "3650"


def server_context(settings: BrokerSettings, data: Path) -> ssl.SSLContext | None:
    """Make what a broker needs to speak TLS; None when it does not.

    Raises
    ------
    SettingsError
        When certificate or key cannot be read, or none can be made.
    """
    certificate, key = settings.tls_certificate, settings.tls_key
    if settings.tls_mode == "disabled":
        return None
    if certificate is None:
        if key is not None:
            message = f"the key {key} has no certificate: tls_certificate is missing"
            raise SettingsError(message, hint="Give both (--tls-certificate, --tls-key).")
        if not settings.tls and settings.tls_mode != "enforcing":
            return None
        hosts = {"localhost", "127.0.0.1", settings.host, settings.advertised_host or ""}
        certificate, key = make_certificate(data / "tls", hosts | {socket.gethostname()})
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        message = f"the certificate {certificate} with the key {key or 'in it'} cannot be used:"
        hint = "Both are PEM files; the key has no password."
        raise SettingsError(f"{message} {error}", hint=hint) from None
    return context


def make_certificate(folder: Path, hosts: Iterable[str]) -> tuple[Path, Path]:
    """Return certificate and key in a folder, made now if they are not there.

    Raises
    ------
    SettingsError
        When the program ``openssl``, which makes them, is not there or fails.
    """
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    if certificate.exists() and key.exists():
        return certificate, key
    openssl = shutil.which("openssl")
    if openssl is None:
        message = "no certificate is given, and none can be made: the program openssl is missing"
        hint = "Install openssl, or give --tls-certificate and --tls-key."
        raise SettingsError(message, hint=hint)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    new_certificate, new_key = folder / "certificate.new", folder / "key.new"
    # Nobody else may read the key, not even for a moment.
    new_key.touch(mode=0o600)
    names = ",".join(sorted(map(_subject, {host for host in hosts if host})))
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", _DAYS, "-subj", "/CN=headrace broker"]
    command += ["-addext", f"subjectAltName={names}"]
    command += ["-keyout", str(new_key), "-out", str(new_certificate)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        message = f"openssl could not make a certificate: {done.stderr.strip()[-500:]}"
        raise SettingsError(message, hint="Give one with --tls-certificate and --tls-key.")
    new_key.chmod(0o600)
    new_key.replace(key)
    new_certificate.replace(certificate)
    return certificate, key


def _subject(host: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        return f"DNS:{host}"


logger = logging.getLogger(__name__)
_quiet = QuietLog(logger)

#: First byte of a TLS handshake.  No frame begins with it: it would be longer than any.
_HANDSHAKE = b"\x16"
_BACKLOG = 1024
_AT_ONCE = 128
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE = 0.5
_GOODBYE = 5.0
_FIRST_LOOK = 64 * 1024
# A peer that vanished without a word is noticed within two minutes.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


@dataclass(frozen=True, slots=True)
class Admission:
    """What a port lets in."""

    limits: Limits
    mode: TlsMode = "disabled"
    #: Certificate and key; None where TLS is disabled.
    context: ssl.SSLContext | None = None


@dataclass(slots=True, eq=False)
class _Guest:
    """A connection that has not said anything yet."""

    socket: socket.socket
    host: str
    port: int
    timer: asyncio.TimerHandle | None = None


class Listener:
    """Takes connections from a listening socket.

    Parameters
    ----------
    listening
        The socket, bound.
    make
        Makes the protocol of a connection.
    gate
        What is let in.
    """

    def __init__(
        self, listening: socket.socket, make: Callable[[], Connection], gate: Admission
    ) -> None:
        self._socket = listening
        self._make = make
        self._gate = gate
        self._loop = asyncio.get_running_loop()
        self._guests: set[_Guest] = set()
        self._by_host: Counter[str] = Counter()
        self._count = 0
        self._most = most_connections(gate.limits.max_connections)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to take connections."""
        self._socket.settimeout(0)
        self._socket.listen(_BACKLOG)
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Take no more connections; those that stand are not touched."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
        for guest in list(self._guests):
            self._dismiss(guest)
        for task in self._tasks:
            task.cancel()

    def left(self, host: str) -> None:
        """Count a connection from a host as gone."""
        self._count -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                self._rest(error)
                return
            self._welcome(accepted, str(address[0]), int(address[1]))

    def _rest(self, error: OSError) -> None:
        _quiet.warning("no more connections can be taken for now: %s", error.strerror)
        self._loop.remove_reader(self._socket)
        self._loop.call_later(_PAUSE, self._resume)

    def _resume(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket, self._accept)

    def _welcome(self, accepted: socket.socket, host: str, port: int) -> None:
        limits = self._gate.limits
        accepted.settimeout(0)
        if self._count >= self._most:
            _quiet.warning("refusing a connection from %s: there are %d already", host, self._count)
            accepted.close()
            return
        if self._by_host[host] >= limits.max_connections_per_address:
            count = self._by_host[host]
            _quiet.warning("refusing a connection from %s: it has %d already", host, count)
            accepted.close()
            return
        self._count += 1
        self._by_host[host] += 1
        _keep_alive(accepted)
        guest = _Guest(accepted, host, port)
        self._guests.add(guest)
        timeout = limits.greeting_timeout.total_seconds()
        guest.timer = self._loop.call_later(timeout, self._dismiss, guest, "it says nothing")
        self._loop.add_reader(accepted, self._greeted, guest)

    def _forget(self, guest: _Guest) -> None:
        self._guests.discard(guest)
        self._loop.remove_reader(guest.socket)
        if guest.timer is not None:
            guest.timer.cancel()

    def _dismiss(self, guest: _Guest, why: str = "") -> None:
        self._forget(guest)
        guest.socket.close()
        self.left(guest.host)
        if why:
            _quiet.warning("closing a new connection from %s:%d: %s", guest.host, guest.port, why)

    def _greeted(self, guest: _Guest) -> None:
        """Peek at the first byte, without taking it."""
        try:
            first = guest.socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        gate = self._gate
        if not first:
            self._dismiss(guest)
        elif first == _HANDSHAKE and gate.context is None:
            self._dismiss(guest, "it speaks TLS, and this broker has no certificate")
        elif first != _HANDSHAKE and gate.mode == "enforcing":
            _say_that_it_takes_tls(guest.socket)
            self._dismiss(guest, "it does not speak TLS, which this broker insists on")
        else:
            self._forget(guest)
            context = gate.context if first == _HANDSHAKE else None
            connection = self._make()
            task = self._loop.create_task(self._admit(guest, connection, context))
            self._tasks.add(task)
            task.add_done_callback(partial(self._admitted, guest, connection))

    async def _admit(
        self, guest: _Guest, connection: Connection, context: ssl.SSLContext | None
    ) -> None:
        timeout = self._gate.limits.greeting_timeout.total_seconds() if context else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                guest.socket,
                ssl=context,
                ssl_handshake_timeout=timeout,
                ssl_shutdown_timeout=_GOODBYE if context else None,
            )
        except (OSError, TimeoutError) as error:
            # A connection that stood for a moment has been counted as gone by itself.
            if not connection.stood:
                guest.socket.close()
                self.left(guest.host)
            what = "a TLS handshake" if context else "a new connection"
            _quiet.warning("%s with %s:%d failed: %s", what, guest.host, guest.port, error)

    def _admitted(self, guest: _Guest, connection: Connection, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # A task that is cancelled before its first step cannot tidy up by itself.
        if task.cancelled() and not connection.stood:
            guest.socket.close()


def _say_that_it_takes_tls(plain: socket.socket) -> None:
    """Answer a first request that has arrived whole, so that its sender learns what is wrong."""
    with contextlib.suppress(OSError, ProtocolError):
        for request in FrameBuffer(max_frame=_FIRST_LOOK).feed(plain.recv(_FIRST_LOOK)):
            remark = "this broker takes TLS connections only: set tls (in Java, tls.enable=true)"
            plain.send(b"".join(encode(request.reply(ResponseCode.NO_PERMISSION, remark))))
            return


def _keep_alive(accepted: socket.socket) -> None:
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        # Each system knows some of them.
        if hasattr(socket, name):
            accepted.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
