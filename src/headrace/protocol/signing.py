"""Signatures of requests, as RocketMQ's access control has them.

What is signed: the values of all fields but the signature, in the order of their names, and then
the body.  The signature is the Base64 text of an HMAC-SHA1 under the secret key.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer, Command


ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105  (the name of a field)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who sends requests; the secrets in it are never printed.

    >>> Credentials("app", "12345678")
    Credentials(access_key='app')
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


def signature(ext: dict[str, str], body: Buffer, secret_key: str) -> str:
    """Compute the signature of a request.

    >>> signature({"topic": "lines", "AccessKey": "app"}, b"", "12345678")
    'vKf+83l/zxSKqpBzz3SBNYcWmyw='
    """
    text = "".join([ext[name] for name in sorted(ext) if name != SIGNATURE])
    mac = hmac.new(secret_key.encode(), text.encode("utf-8", "surrogatepass"), "sha1")
    mac.update(body)
    return base64.b64encode(mac.digest()).decode("ascii")


def sign(command: Command, credentials: Credentials) -> None:
    """Add access key and signature to a request that is complete but for them."""
    # Fields are shared between the tries of a request.
    ext = dict(command.ext)
    ext[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        ext[SECURITY_TOKEN] = credentials.security_token
    ext[SIGNATURE] = signature(ext, command.payload, credentials.secret_key)
    command.ext = ext


def is_signed_with(command: Command, secret_key: str) -> bool:
    """Tell whether a request carries the signature that the secret key makes."""
    given = command.ext.get(SIGNATURE, "")
    right = signature(command.ext, command.payload, secret_key)
    # In constant time: how far they agree must not show.
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), right.encode())
