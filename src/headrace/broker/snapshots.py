"""The tables of a broker, and how they are kept: whole files of JSON, replaced in one step."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from headrace.broker.offsets import ConsumerOffsets, GroupTable
from headrace.broker.static_topics import StaticTopics
from headrace.broker.topics import TopicTable
from headrace.errors import CorruptLogError, StoreError
from headrace.protocol.groups import SubscriptionGroupConfig
from headrace.protocol.routes import COMPACTED, MappingDetail, TopicConfig
from headrace.store.fileops import FileOps, replace_file, write_error

if TYPE_CHECKING:
    from headrace.broker.settings import BrokerSettings
    from headrace.broker.waiting import BackgroundWork
    from headrace.store import MessageStore


logger = logging.getLogger(__name__)

T = TypeVar("T")


def save_snapshot(path: Path, table: object) -> None:
    """Replace a file by the JSON of a table, durably.

    A reader, also one after a crash, finds the old content or the new, never a mixture.

    Raises
    ------
    StoreError
        When the disk is full or broken; the old content stays.
    """
    ops = FileOps()
    try:
        ops.make_directory(path.parent)
        replace_file(ops, path, _encoded(table))
    except OSError as error:
        # A failed write does not name its file.
        raise write_error(ops, path, error) from error


def _encoded(table: object) -> bytes:
    """Write a table as JSON, a line for each of its rows: between two, other threads have a turn."""
    encode = msgspec.json.encode
    if isinstance(table, list) and table:
        return b"[\n" + b",\n".join(map(encode, table)) + b"\n]\n"
    if isinstance(table, dict) and table:
        rows = (encode(str(key)) + b": " + encode(value) for key, value in table.items())
        return b"{\n" + b",\n".join(rows) + b"\n}\n"
    return encode(table)


def load_snapshot(path: Path, kind: type[T]) -> T | None:
    """Read a table back; None when it was never saved.

    Raises
    ------
    CorruptLogError
        When the file is not what :func:`save_snapshot` writes.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        message = f"{path} does not hold the table that the broker saved there: {error}"
        hint = "Restore the file from a copy, or remove it to start with an empty table."
        raise CorruptLogError(message, hint=hint) from error


class _Versioned(Protocol):
    #: Number of changes so far.
    version: int

    def replace(self, content: Any, /) -> None: ...


_KINDS = {
    # Mappings first: a topic without its mapping would be used by the wrong numbers.
    "static_topics": list[MappingDetail],
    "topics": list[TopicConfig],
    "groups": list[SubscriptionGroupConfig],
    "offsets": dict[str, dict[str, dict[int, int]]],
}


@dataclass(slots=True)
class SavedTable:
    """A table that changes in memory, and its file."""

    path: Path
    #: Type of what is written.
    kind: Any
    table: _Versioned
    #: Returns what is to be written; nobody changes it meanwhile.
    content: Callable[[], list[Any] | dict[str, Any]]
    #: The version that is on disk.
    saved: int

    @property
    def is_saved(self) -> bool:
        """Whether the file holds what the table does."""
        return self.saved == self.table.version


class BrokerTables:
    """What a broker keeps beside its log: topics, groups and offsets, each in a file.

    Parameters
    ----------
    folder
        Where the files are.
    store
        The messages, which bring topics back whose file is lost.
    settings
        How the broker behaves.
    work
        Where files are written.
    """

    def __init__(
        self, folder: Path, store: MessageStore, settings: BrokerSettings, work: BackgroundWork
    ) -> None:
        #: When the versions of this run began, ms since 1970.
        self.started = time.time_ns() // 1_000_000
        self._work = work
        self._saving = asyncio.Lock()
        self._saves_soon = False
        #: What waits until a topic is ready.
        self._held: list[tuple[str, Callable[[StoreError | None], None]]] = []
        #: Topics for which a batch is being cut apart: what comes later waits behind it.
        self._busy: set[str] = set()
        saved: dict[str, Any] = {
            name: load_snapshot(folder / f"{name}.json", kind) for name, kind in _KINDS.items()
        }
        self.static_topics = StaticTopics(settings.broker_name, saved["static_topics"] or ())
        self.topics = TopicTable(
            settings.cluster, settings.broker_name, settings.default_queues, saved["topics"] or ()
        )
        self.groups = GroupTable(create=settings.create_groups, saved=saved["groups"] or ())
        self.offsets = ConsumerOffsets(saved["offsets"])
        self._find_topics(store)
        contents: dict[str, tuple[_Versioned, Callable[[], Any]]] = {
            "static_topics": (self.static_topics, lambda: [*self.static_topics.details().values()]),
            "topics": (self.topics, self._own_topics),
            "groups": (self.groups, self.groups.configs),
            "offsets": (self.offsets, self.offsets.table),
        }
        #: By name, in the order in which they are written and taken over.
        self.saved = {
            name: SavedTable(
                folder / f"{name}.json", kind, *contents[name], contents[name][0].version
            )
            for name, kind in _KINDS.items()
        }

    def _find_topics(self, store: MessageStore) -> None:
        # A topic is saved before its first message; only a lost file makes these differ.
        queues: dict[str, int] = {}
        for topic, queue_id in store.queues():
            queues[topic] = max(queues.get(topic, 0), queue_id + 1)
        compacted = store.compacted_topics()
        for topic, count in queues.items():
            attributes = COMPACTED if topic in compacted else None
            self.topics.create(topic, queues=count, attributes=attributes)

    def _own_topics(self) -> list[TopicConfig]:
        system = set(self.topics.system)
        return [config for config in self.topics.configs() if config.topic_name not in system]

    async def save(self, *, offsets: bool = False) -> None:
        """Return when the tables as they are now are durable; offsets, too, where that is said.

        Whatever waits meanwhile goes with the next write.

        Raises
        ------
        StoreError
            The disk is full or broken; what was there stays.
        """
        async with self._saving:
            try:
                for name, table in self.saved.items():
                    if not table.is_saved and (offsets or name != "offsets"):
                        version, content = table.table.version, table.content()
                        await self._write(table.path, content)
                        table.saved = version
            except StoreError as error:
                self._let_go(error)
                raise
            self._let_go(None)

    async def _write(self, path: Path, content: object) -> None:
        writing = self._work.pool.submit(save_snapshot, path, content)
        try:
            await asyncio.wrap_future(writing)
        except asyncio.CancelledError:
            # Its thread goes on: whoever saves next writes the same file.
            await asyncio.wait([asyncio.wrap_future(writing)])
            raise

    def save_soon(self) -> None:
        """Make the tables durable a moment later: what is lost with a crash is found otherwise."""
        if not self._saves_soon and not (
            self.saved["topics"].is_saved and self.saved["groups"].is_saved
        ):
            self._saves_soon = True
            self._work.start_task(self._save_once())

    async def _save_once(self) -> None:
        self._saves_soon = False
        try:
            await self.save()
        except StoreError as error:
            logger.error("topics or groups could not be saved: %s", error)

    def ensure_topic(self, name: str, queues: int) -> None:
        """Create a topic that the broker itself needs; its first message would bring it back, too."""
        self.topics.create(name, queues=queues)
        self.save_soon()

    # When a topic takes messages.

    def once_ready(self, topic: str, call: Callable[[StoreError | None], None]) -> None:
        """Call back once a topic is ready, or cannot be made durable: at once where it is.

        Calls for a topic come in the order in which they were asked for.
        """
        if self.is_ready(topic):
            call(None)
        else:
            self._held.append((topic, call))
            self.save_soon()

    def begin_busy(self, topic: str) -> None:
        """Hold what comes for a topic until :meth:`end_busy`."""
        self._busy.add(topic)

    def end_busy(self, topic: str) -> None:
        """Let what has waited for a topic go on, in its order."""
        self._busy.discard(topic)
        self._let_go(None)
        if self._held:
            # A save that failed meanwhile has not told those that waited for the batch as well.
            self.save_soon()

    def _let_go(self, error: StoreError | None) -> None:
        """Make the calls that have waited, in one step: nobody comes between them."""
        held, self._held = self._held, []
        for topic, call in held:
            if self.is_ready(topic) or (error is not None and topic not in self._busy):
                call(error)
            else:
                self._held.append((topic, call))

    def is_ready(self, topic: str) -> bool:
        """Whether a topic is durable as it is now, and nothing for it is still on its way."""
        durable = self.topics.version_of(topic) <= self.saved["topics"].saved
        return durable and topic not in self._busy
