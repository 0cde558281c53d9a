"""How far a sink has written each queue: a small object per queue, beside the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.connect.connectors.s3._naming import mark_key
from headrace.errors import FencedError, StoreError

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.connect import Queue
    from headrace.connect.connectors.s3.connection import Bucket

__all__ = ["Mark", "Marks", "write_object"]


class Mark(msgspec.Struct, frozen=True):
    """How far one queue has been written.

    The offset is what commits: objects from it on are of a batch that was not finished.
    """

    #: The next offset; ``None`` where nothing has been written.
    offset: int | None = None
    #: The life of the task that has the queue.
    generation: int = 0
    #: Keys of objects that may be there though their batch was not finished.
    drafts: tuple[str, ...] = ()


class Marks:
    """Reads and writes marks.

    Parameters
    ----------
    bucket, prefix
        Where they are.
    generation
        The life of this task; 0 is nobody's.
    """

    def __init__(self, bucket: Bucket, prefix: str, generation: int) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._generation = generation

    def read(self, queue: Queue) -> Mark:
        """Give the mark of a queue, as it is now.

        Raises
        ------
        FencedError
            Where a later life of the task has the queue.
        """
        path = self._path(queue)
        try:
            with self._bucket.files.open_input_stream(path) as stream:
                text = stream.read()
        except FileNotFoundError:
            return Mark()
        try:
            mark = msgspec.json.decode(text, type=Mark)
        except msgspec.MsgspecError as error:
            message = f"The object {path} cannot be read: {error}."
            hint = 'Write it as it was, such as {"offset": 7}.'
            raise StoreError(message, hint=hint) from error
        if 0 < self._generation < mark.generation:
            raise self._fenced(queue, mark.generation)
        return mark

    def write(self, queue: Queue, offset: int | None, drafts: tuple[str, ...] = ()) -> Mark:
        """Set the mark of a queue; give it."""
        mark = Mark(offset, self._generation, drafts)
        write_object(self._bucket, self._path(queue), msgspec.json.encode(mark), "application/json")
        return mark

    def _path(self, queue: Queue) -> str:
        return self._bucket.path(mark_key(self._prefix, queue))

    def _fenced(self, queue: Queue, generation: int) -> FencedError:
        return FencedError(
            f"{self._path(queue)} says that generation {generation} writes this queue, and this"
            f" task is of generation {self._generation}.",
            hint="Another task has taken over, or another cluster has written to this prefix: then"
            " give this connector a prefix of its own, or set its offsets by hand to take over.",
        )


def write_object(bucket: Bucket, path: str, content: bytes | pa.Buffer, kind: str) -> None:
    """Write an object, which is there whole or not at all."""
    # Arrow would compress by itself what a key's ending says is compressed.
    files, metadata = bucket.files, {"Content-Type": kind}
    stream = files.open_output_stream(path, compression=None, metadata=metadata)
    stream.write(content)
    # An end before this leaves no object: a large one is put together by its close.
    stream.close()
