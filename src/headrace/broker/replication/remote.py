"""A connection to another broker."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from headrace._setting import DeclaredSettings
from headrace.errors import ConnectionFailedError, RequestTimeoutError, broker_error
from headrace.protocol.frames import Buffer, Command, Credentials, FrameBuffer, encode, sign
from headrace.settings import ConnectionSettings

_READ = 1 << 20
#: Largest answer that is taken, bytes: one entry of the log at least.
_MAX_FRAME = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSecurity(ConnectionSettings):
    """How this broker proves to others who it is, and whether it speaks TLS with them.

    Examples
    --------
    >>> PeerSecurity.from_env({"HEADRACE_TLS": "1"}).tls
    True
    """

    def __post_init__(self) -> None:
        # The variables may hold one key alone: a client's command takes the other as an option.
        DeclaredSettings.__post_init__(self)

    @property
    def credentials(self) -> Credentials | None:
        """Account of an admin at the other broker, None: requests are not signed."""
        if self.access_key is None or self.secret_key is None:
            return None
        return Credentials(self.access_key, self.secret_key, self.security_token)

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
