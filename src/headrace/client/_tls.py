"""TLS as a client sees it: the context, and what its failures mean."""

from __future__ import annotations

import ssl
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.client.settings import read_certificates
from headrace.errors import ConnectionFailedError, HeadraceError, TlsError

if TYPE_CHECKING:
    from headrace.client.settings import ClientSettings

__all__ = ["tls_context", "tls_failure"]

_WRONG_PEER = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")


def tls_context(settings: ClientSettings) -> ssl.SSLContext | None:
    """Make the context that the settings ask for; None: plain connections.

    Raises
    ------
    SettingsError
        The file of certificates is not there, or holds none.
    """
    if not settings.tls:
        return None
    return _context(settings.tls_ca, settings.tls_ca_data, verify=settings.tls_verify)


@cache
def _context(ca: Path | None, data: str | None, *, verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=data if ca is None else read_certificates(ca))
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def tls_failure(address: str, error: OSError) -> HeadraceError:
    """Say what a failed handshake means."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(
            f"the certificate of {address} is not trusted: {error.verify_message}",
            hint="give the file with its certificate as tls_ca (HEADRACE_TLS_CA), connect to a"
            " name that the certificate holds, or set tls_verify=False where nobody listens in",
        )
    if isinstance(error, ssl.SSLError) and error.reason in _WRONG_PEER:
        return TlsError(
            f"what listens at {address} does not speak TLS", hint="leave tls out, or check the port"
        )
    return ConnectionFailedError(
        f"{address} closed the connection during the TLS handshake: {error}",
        hint="does it take TLS? A broker without a certificate does not: leave tls out, or start it"
        " with `headrace broker --tls`",
    )
