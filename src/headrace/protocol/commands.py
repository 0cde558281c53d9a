"""Commands: the requests and responses of the remoting protocol, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.protocol.codes import VERSION

__all__ = ["Buffer", "Command"]

#: Anything that holds contiguous bytes.
Buffer = bytes | bytearray | memoryview

_RESPONSE = 1
_ONEWAY = 2


@dataclass(slots=True)
class Command:
    """One request or response.

    >>> request = Command(105, {"topic": "lines"}, opaque=7)
    >>> answer = request.reply(body=b"{}")
    >>> answer.is_response, answer.opaque
    (True, 7)
    """

    #: A request's code says what to do, a response's how it ended.
    code: int
    #: The request's or response's own fields; every value is text on the wire.
    ext: dict[str, str] = field(default_factory=dict)
    #: Received bodies are views; bodies to send may come in pieces, which are not copied.
    body: Buffer | Sequence[Buffer] = b""
    #: What went wrong, in responses.
    remark: str | None = None
    #: Number that pairs a response with its request.
    opaque: int = 0
    flag: int = 0
    language: str = "PYTHON"
    version: int = VERSION

    @property
    def is_response(self) -> bool:
        """Whether this answers a request of ours."""
        return bool(self.flag & _RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer."""
        return bool(self.flag & _ONEWAY)

    @property
    def payload(self) -> Buffer:
        """The body as one buffer, whatever pieces it came in."""
        return self.body if isinstance(self.body, Buffer) else b"".join(self.body)

    def reply(
        self,
        code: int = 0,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: Buffer | Sequence[Buffer] = b"",
    ) -> Command:
        """Make the response to this request."""
        return Command(int(code), ext or {}, body, remark, self.opaque, _RESPONSE)
