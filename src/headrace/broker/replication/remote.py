"""A connection to another broker."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.errors import ConnectionFailedError, RequestTimeoutError, broker_error
from headrace.protocol.frames import Buffer, Command, Credentials, FrameBuffer, encode, sign

_READ = 1 << 20
#: Largest answer that is taken, bytes: one entry of the log at least.
_MAX_FRAME = 1 << 28
_NO = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSecurity:
    """How this broker proves to others who it is, and whether it speaks TLS with them.

    Examples
    --------
    >>> PeerSecurity.from_environment({"HEADRACE_TLS": "1"}).tls
    True
    """

    #: Account of an admin at the other broker, None: requests are not signed.
    credentials: Credentials | None = None
    #: Whether to connect by TLS, and which certificates to trust; None: the system's.
    tls: bool = False
    tls_ca: Path | None = None
    #: Whether a certificate must be trusted.
    tls_verify: bool = True

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> PeerSecurity:
        """Read the variables that clients read, too: ``HEADRACE_ACCESS_KEY`` and so on."""
        key, secret = environ.get("HEADRACE_ACCESS_KEY"), environ.get("HEADRACE_SECRET_KEY")
        ca = environ.get("HEADRACE_TLS_CA")
        return cls(
            credentials=Credentials(key, secret) if key and secret else None,
            tls=environ.get("HEADRACE_TLS", "").lower() not in _NO,
            tls_ca=Path(ca) if ca else None,
            tls_verify=environ.get("HEADRACE_TLS_VERIFY", "1").lower() not in _NO,
        )

    def context(self) -> ssl.SSLContext | None:
        """Make what a connection by TLS needs, None for a plain one."""
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.tls_ca)
        if not self.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


class Remote:
    """One request after another to another broker; used with ``async with``.

    Parameters
    ----------
    address
        ``host:port`` of the other broker.
    patience
        Seconds for the connection, and for an answer unless a request says otherwise.
    security
        How to prove who this broker is.
    """

    def __init__(
        self, address: str, patience: float = 5.0, security: PeerSecurity | None = None
    ) -> None:
        self.address = address
        self._security = security or PeerSecurity()
        self._patience = patience
        self._frames = FrameBuffer(_MAX_FRAME)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._opaque = 0

    async def __aenter__(self) -> Self:
        host, _, port = self.address.rpartition(":")
        try:
            async with asyncio.timeout(self._patience):
                self._reader, self._writer = await asyncio.open_connection(
                    host.strip("[]"), int(port), limit=_READ, ssl=self._security.context()
                )
        except TimeoutError as error:
            raise self._failed(f"no answer within {self._patience:g} s") from error
        except (OSError, ValueError) as error:
            raise self._failed(getattr(error, "strerror", None) or str(error)) from error
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            # The transport drops its descriptor in the next round of the loop.
            await asyncio.sleep(0)

    async def ask(
        self,
        code: int,
        body: Buffer = b"",
        ext: dict[str, str] | None = None,
        patience: float | None = None,
    ) -> Command:
        """Send a request and wait for its answer.

        Raises
        ------
        ConnectionFailedError
            The connection was lost.
        RequestTimeoutError
            No answer came in time.
        BrokerError
            The other broker refused.
        """
        assert self._writer is not None
        self._opaque += 1
        command = Command(code, ext or {}, body, opaque=self._opaque)
        if self._security.credentials is not None:
            sign(command, self._security.credentials)
        patience = self._patience if patience is None else patience
        try:
            async with asyncio.timeout(patience):
                self._writer.writelines([bytes(piece) for piece in encode(command)])
                answer = await self._answer()
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"{self.address} did not answer within {patience:g} s"
            ) from error
        except OSError as error:
            raise self._failed(error.strerror or str(error)) from error
        if answer.code:
            raise broker_error(answer.code, answer.remark or f"code {answer.code}")
        return answer

    async def _answer(self) -> Command:
        assert self._reader is not None
        while True:
            data = await self._reader.read(_READ)
            if not data:
                raise self._failed("the other side closed it")
            for command in self._frames.feed(data):
                if command.is_response and command.opaque == self._opaque:
                    return command

    def _failed(self, why: str) -> ConnectionFailedError:
        return ConnectionFailedError(
            f"no connection to the broker at {self.address}: {why}", hint="does it run there?"
        )
