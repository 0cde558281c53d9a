"""Settings of how a client connects, waits and retries."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from headrace.errors import SettingsError
from headrace.protocol.frames import Credentials

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Time limits and sizes of a client.

    Examples
    --------
    >>> from datetime import timedelta
    >>> ClientSettings(retry_timeout=timedelta(minutes=5)).request_timeout
    datetime.timedelta(seconds=10)
    """

    #: How long an address that never answered is tried before it counts as wrong.
    connect_timeout: timedelta = timedelta(seconds=5)
    #: How long one request may take before it counts as lost.
    request_timeout: timedelta = timedelta(seconds=10)
    #: How long a request that may succeed later is tried again, once the address has answered.
    retry_timeout: timedelta = timedelta(seconds=60)
    #: First pause between two tries; it doubles, with jitter, up to ``retry_backoff_limit``.
    retry_backoff: timedelta = timedelta(milliseconds=50)
    #: Longest pause between two tries.
    retry_backoff_limit: timedelta = timedelta(seconds=1)
    #: Age at which the route of a topic is asked for again.
    route_refresh: timedelta = timedelta(seconds=30)
    #: Pause between two heartbeats of a group consumer.
    heartbeat_interval: timedelta = timedelta(seconds=30)
    #: Pause between two looks at the members of a group.
    rebalance_interval: timedelta = timedelta(seconds=20)
    #: Pause between two automatic commits of a group consumer.
    commit_interval: timedelta = timedelta(seconds=5)
    #: Pause between two renewals of an ordered consumer's queue locks; brokers wait 60 s.
    lock_interval: timedelta = timedelta(seconds=20)
    #: Largest message that is sent, in bytes, and largest batch.
    max_message_size: int = 4 * _MIB
    #: Bytes that the requests of ``Producer.send_many`` and ``send_columns`` are filled up to.
    batch_size: int = _MIB
    #: Largest frame that is read, in bytes; a pull must not ask for more than this.
    max_frame_size: int = 64 * _MIB
    #: Bodies of at least so many bytes are compressed when sent one by one; None means never.
    compress_from: int | None = None
    #: Name of the account that signs requests; None means that requests are not signed.
    access_key: str | None = None
    #: Secret of the account; never printed.
    secret_key: str | None = field(default=None, repr=False)
    #: Token of a temporary account; never printed.
    security_token: str | None = field(default=None, repr=False)
    #: Whether all connections use TLS.
    tls: bool = False
    #: Whether the brokers' certificates must be trusted and hold their names.
    tls_verify: bool = True
    #: File of the certificates that are trusted, in PEM format; None means those of the system.
    tls_ca: Path | None = None
    #: The certificates themselves, in place of the file.
    tls_ca_data: str | None = field(default=None, repr=False)

    def portable(self) -> ClientSettings:
        """Return settings for other machines, with the certificates in place of their file.

        Raises
        ------
        SettingsError
            If the file is missing or holds no certificates.
        """
        if self.tls_ca is None:
            return self
        return replace(self, tls_ca=None, tls_ca_data=read_certificates(self.tls_ca))

    @property
    def credentials(self) -> Credentials | None:
        """The account that signs requests; None if there is none."""
        if self.access_key is None or self.secret_key is None:
            return None
        return Credentials(self.access_key, self.secret_key, self.security_token)

    def __post_init__(self) -> None:
        for name in ("connect_timeout", "request_timeout", "retry_backoff", "retry_backoff_limit"):
            value: timedelta = getattr(self, name)
            if value <= timedelta(0):
                raise SettingsError(
                    f"client setting {name} is {value}, not a positive time",
                    hint="give a positive timedelta",
                )
        if (self.access_key is None) != (self.secret_key is None):
            lacking = "secret_key" if self.secret_key is None else "access_key"
            raise SettingsError(
                f"client setting {lacking} is missing: requests are signed with both keys",
                hint="give access_key and secret_key, or neither",
            )


def read_certificates(path: Path) -> str:
    """Read a file of certificates in PEM format.

    Raises
    ------
    SettingsError
        If the file is missing or holds no certificates.
    """
    try:
        # Anything else in such a file is a comment.
        text = path.read_text(encoding="ascii", errors="ignore")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text or "nothing")
    except OSError as error:
        why = "it holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise SettingsError(
            f"the certificates in {path.resolve()} on {socket.gethostname()} cannot be read: {why}",
            hint="tls_ca names a file in PEM format",
        ) from error
    return text


def parse_addresses(text: str) -> tuple[str, ...]:
    """Split a list of name servers, ``host:port`` separated by ``;`` or ``,``.

    Raises
    ------
    SettingsError
        If there is none, or one of them is not ``host:port``.

    Examples
    --------
    >>> parse_addresses("10.0.0.1:9876;10.0.0.2:9876")
    ('10.0.0.1:9876', '10.0.0.2:9876')
    """
    addresses = tuple(part.strip() for part in text.replace(",", ";").split(";") if part.strip())
    for address in addresses or ("",):
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise SettingsError(
                f"{address!r} is not the address of a name server",
                hint="write HOST:PORT, several separated by ';', e.g. --namesrv 127.0.0.1:9876",
            )
    return addresses
