"""Settings of how a client connects, waits and retries."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from headrace._setting import SHORTEST, setting
from headrace.errors import SettingsError
from headrace.protocol.frames import Credentials
from headrace.settings import ConnectionSettings

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings(ConnectionSettings):
    """Time limits and sizes of a client.

    Examples
    --------
    >>> from datetime import timedelta
    >>> ClientSettings(retry_timeout=timedelta(minutes=5)).request_timeout
    datetime.timedelta(seconds=10)
    """

    VARIABLES = ""

    retry_backoff: timedelta = setting(
        timedelta(milliseconds=50),
        doc="First pause between two tries; it doubles, with jitter, up to retry_backoff_limit.",
        minimum=SHORTEST,
    )
    retry_backoff_limit: timedelta = setting(
        timedelta(seconds=1), doc="Longest pause between two tries.", minimum=SHORTEST
    )
    route_refresh: timedelta = setting(
        timedelta(seconds=30), doc="Age at which the route of a topic is asked for again."
    )
    heartbeat_interval: timedelta = setting(
        timedelta(seconds=30), doc="Pause between two heartbeats of a group consumer."
    )
    rebalance_interval: timedelta = setting(
        timedelta(seconds=20), doc="Pause between two looks at the members of a group."
    )
    commit_interval: timedelta = setting(
        timedelta(seconds=5), doc="Pause between two automatic commits of a group consumer."
    )
    lock_interval: timedelta = setting(
        timedelta(seconds=20),
        doc="Pause between two renewals of an ordered consumer's queue locks; brokers wait 60 s.",
    )
    max_message_size: int = setting(
        4 * _MIB, doc="Largest message that is sent, and largest batch.", unit="bytes", minimum=1
    )
    batch_size: int = setting(
        _MIB,
        doc="What the requests of `Producer.send_many` and `send_columns` are filled up to.",
        unit="bytes",
        minimum=1,
    )
    max_frame_size: int = setting(
        64 * _MIB,
        doc="Largest frame that is read; a pull must not ask for more than this.",
        unit="bytes",
        minimum=1,
    )
    compress_from: int | None = setting(
        None,
        doc="Bodies of at least so many bytes are compressed when sent one by one.",
        unit="bytes",
        nothing="never",
    )
    tls_ca_data: str | None = setting(
        None, doc="The certificates themselves, in place of the file.", secret=True
    )

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
