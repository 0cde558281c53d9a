"""The broker's certificate: one that is given, or one that it makes for itself."""

from __future__ import annotations

import ipaddress
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import SettingsError

if TYPE_CHECKING:
    from headrace.broker.settings import BrokerSettings

__all__ = ["make_certificate", "server_context"]

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
    """Give certificate and key in a folder, made now if they are not there.

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
