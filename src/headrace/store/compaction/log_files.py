"""The files of a queue's log: the view that readers have, and how it is replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from headrace.errors import CorruptLogError, StoreError, StoreFailedError
from headrace.store.compaction.data_file import DerivedFileError
from headrace.store.compaction.entry_reader import damage_at
from headrace.store.compaction.manifest import MANIFEST_NAME, FileMeta, Manifest, publish
from headrace.store.compaction.recovery import derive, paths_of, remove_files
from headrace.store.compaction.row_writer import RowWriter
from headrace.store.compaction.view import Part, View
from headrace.store.fileops import write_error

if TYPE_CHECKING:
    from headrace.store.compaction.digests import KeyDigest
    from headrace.store.compaction.recovery import Recovered
    from headrace.store.fileops import FileOps

__all__ = ["LogFiles"]

_Answer = TypeVar("_Answer")


class LogFiles:
    """The view of a queue's log; any thread may ask it."""

    def __init__(self, folder: Path, ops: FileOps, digest: KeyDigest, found: Recovered) -> None:
        self.folder = folder
        self.ops = ops
        self.digest = digest
        self.is_closed = False
        self._view = found.view
        self._generation = found.generation
        self._is_born = found.is_born
        self._failure: StoreFailedError | None = None
        self._garbage: list[Path] = []
        #: Guards the view and the small fields; held for moments only.
        self._lock = threading.Lock()
        #: Held while a manifest is published.
        self._publish_lock = threading.Lock()
        #: Held while derived files are made again.
        self._derive_lock = threading.Lock()

    @property
    def view(self) -> View:
        """The log as it stands now."""
        return self._view

    @property
    def has_failed(self) -> bool:
        """Whether a sync failed, so that nothing more is written."""
        return self._failure is not None

    def require_usable(self) -> None:
        """Refuse to go on with a log that has failed or is closed."""
        if self._failure is not None:
            raise StoreFailedError(self._failure.message, hint=self._failure.hint)
        if self.is_closed:
            raise StoreError(f"the compaction log in {self.folder} is closed")

    def fail(self, error: StoreFailedError) -> StoreFailedError:
        """Take note that it is not known what the disk holds."""
        self._failure = error
        return error

    def new_number(self) -> int:
        """Give a number that no file of the folder has."""
        with self._lock:
            self._generation += 1
            return self._generation

    def make_folder(self) -> None:
        """Make folder and manifest of a new log."""
        if self._is_born:
            return
        try:
            self.ops.make_directory(self.folder)
        except OSError as error:
            raise write_error(self.ops, self.folder, error) from error
        self.publish(lambda view: view)
        self._is_born = True

    def extend(self, meta: FileMeta) -> None:
        """Show what was appended to the active file. Caller: the appender."""
        with self._lock:
            view = self._view
            part = Part(meta, view.active.file)
            self._view = View(view.closed, part, meta.last + 1, view.clean_until)

    def publish(self, change: Callable[[View], View]) -> None:
        """Make a changed view the valid one, on disk and for readers; all or nothing.

        The active part and the log's end may change meanwhile: ``change`` takes both from the view
        that it is given, unless its caller has stopped appends.

        Raises
        ------
        StoreError
            Nothing was changed.
        StoreFailedError
            It is not known which view a power cut would leave; the files of both are kept.
        """
        with self._publish_lock:
            self.require_usable()
            manifest = self._manifest(change(self._view))
            try:
                error = publish(self.folder, manifest, self.ops)
            except OSError as refused:
                raise write_error(self.ops, self.folder / MANIFEST_NAME, refused) from refused
            if error is not None:
                failure = StoreFailedError(
                    f"could not sync {self.folder}: {error.strerror or error}",
                    hint="check the disk, then start again: one of two complete states is kept",
                )
                raise self.fail(failure) from error
            with self._lock:
                self._view = change(self._view)

    def remove(self, gone: list[FileMeta], derived_anew: list[FileMeta]) -> None:
        """Remove files that no manifest names any longer, and what could not be removed before."""
        paths = [path for meta in gone for path in paths_of(self.folder, meta)]
        paths += [path for meta in derived_anew for path in paths_of(self.folder, meta)[1:3]]
        self._remove(paths)

    def ask(self, question: Callable[[View], _Answer]) -> _Answer:
        """Answer from the present view; again when its files were replaced meanwhile."""
        while True:
            view = self._view
            try:
                return question(view)
            except DerivedFileError as error:
                self.derive_again(error)
            except FileNotFoundError as error:
                if view is self._view:
                    raise CorruptLogError(
                        f"{error.filename or error} is missing",
                        hint="put the file back from a copy, or restore the queue from a replica",
                    ) from error

    def derive_again(self, cause: DerivedFileError) -> None:
        """Make index and key sidecar of a closed file again from its data.

        When its deletes were met is then not known: they are met anew.
        """
        with self._derive_lock:
            part = next((p for p in self._view.closed if p.meta.name == cause.name), None)
            if part is None:
                if self._view.active.meta.name != cause.name:
                    return
                raise CorruptLogError(
                    str(cause), hint="start again: it is then made again from the data"
                ) from cause
            if part.file is not cause.file:
                return
            remade = self._derived(part)
            self._replace(part.meta.name, remade)
            self._remove(paths_of(self.folder, part.meta)[1:3])

    def _derived(self, part: Part) -> Part:
        meta = msgspec.structs.replace(FileMeta(part.meta.name), derived=self.new_number())
        writer = RowWriter(self.folder, meta, self.digest.mark, self.ops)
        path = part.file.path
        try:
            end = derive(path, part.meta.size, writer, self.digest, self.ops)
            writer.sync()
        except OSError as error:
            raise write_error(self.ops, path, error) from error
        finally:
            writer.close()
        if end < part.meta.size:
            remove_files(paths_of(self.folder, meta)[1:3], self.ops)
            raise damage_at(path, end)
        return Part(writer.meta, part.file.with_derived(writer.meta))

    def _replace(self, name: str, remade: Part) -> None:
        def changed(view: View) -> View:
            closed = tuple(remade if part.meta.name == name else part for part in view.closed)
            return View(closed, view.active, view.log_end, view.clean_until)

        self.publish(changed)

    def _remove(self, paths: list[Path]) -> None:
        with self._lock:
            paths, self._garbage = self._garbage + paths, []
        left = remove_files(paths, self.ops)
        with self._lock:
            self._garbage += left

    def _manifest(self, view: View) -> Manifest:
        active = view.active.meta
        # Not the end of what is appended: a power cut may take the active file's newest records,
        # and an end beyond them would keep those who append from doing it again.
        log_end = active.first if active.count else view.log_end
        return Manifest(
            active=active.name,
            digest=self.digest.algorithm,
            mark=self.digest.mark.hex(),
            files=tuple(part.meta for part in view.closed),
            log_end=log_end,
            clean_until=view.clean_until,
            generation=self._generation,
        )
