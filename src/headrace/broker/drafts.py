"""Messages on their way into the store: they may still change where they go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from headrace.protocol.properties import REAL_QID, REAL_TOPIC, encode_properties
from headrace.protocol.records import RecordFields, Records, encode_record
from headrace.store import QueueAppend

if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer
    from headrace.protocol.messages import StoredMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A message that is about to be stored.

    Examples
    --------
    >>> draft = Draft(topic="lines", queue_id=1, body=b"to be", properties={"KEYS": "k"})
    >>> parked = draft.parked("SCHEDULE_TOPIC_XXXX", 2)
    >>> parked.topic, parked.queue_id, parked.properties["REAL_TOPIC"]
    ('SCHEDULE_TOPIC_XXXX', 2, 'lines')
    >>> parked.unparked() == replace(draft, properties=parked.properties)
    True
    """

    topic: str
    queue_id: int = 0
    #: As it came: a compressed one stays compressed.
    body: Buffer = b""
    properties: Mapping[str, str] = field(default_factory=dict)
    born: int = 0
    born_host: tuple[str, int] = ("127.0.0.1", 0)
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    #: Position of the half message that this one comes from.
    prepared_offset: int = 0

    @classmethod
    def of(cls, message: StoredMessage) -> Self:
        """Take up a message that was stored before, its body as it was stored."""
        return cls(
            topic=message.topic,
            queue_id=message.queue_id,
            body=message.body,
            properties=message.properties,
            born=message.born,
            born_host=message.born_host,
            flag=message.flag,
            sys_flag=message.sys_flag,
            reconsume_times=message.reconsume_times,
        )

    def having(self, changes: Mapping[str, str | None]) -> Self:
        """Change properties; those set to None go."""
        merged = {**self.properties, **changes}
        kept = {name: value for name, value in merged.items() if value is not None}
        return replace(self, properties=kept)

    def parked(self, topic: str, queue_id: int) -> Self:
        """Return a draft that waits in another topic, with a note of where it belongs."""
        noted = self.having({REAL_TOPIC: self.topic, REAL_QID: str(self.queue_id)})
        return replace(noted, topic=topic, queue_id=queue_id)

    def at(self, queue_id: int) -> Self:
        """Choose another queue."""
        return replace(self, queue_id=queue_id)

    def unparked(self) -> Self:
        """Bring a parked message back to where it belongs."""
        topic = self.properties.get(REAL_TOPIC, self.topic)
        return replace(
            self, topic=topic, queue_id=int(self.properties.get(REAL_QID, self.queue_id))
        )

    def records(self) -> Records:
        """Make the record to store.

        Raises
        ------
        MessageRejectedError
            A property holds a separator, or all are too long.
        """
        numbers = RecordFields(
            queue_id=self.queue_id,
            born=self.born,
            born_host=self.born_host,
            flag=self.flag,
            sys_flag=self.sys_flag,
            reconsume_times=self.reconsume_times,
            prepared_offset=self.prepared_offset,
        )
        return encode_record(self.topic, self.body, encode_properties(self.properties), numbers)

    def append(self) -> QueueAppend:
        """Make what the store appends."""
        return QueueAppend(self.topic, self.queue_id, self.records())
