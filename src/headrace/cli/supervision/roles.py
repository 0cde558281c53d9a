"""What a driver does for its supervisor: it stands by when it is asked to, and tells how it stands."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headrace.cli._figures import short_driver
from headrace.cli._terminal import say
from headrace.cli.supervision.channel import Channel, Word
from headrace.errors import FencedError, HeadraceError

if TYPE_CHECKING:
    from headrace.spark import StreamJob, TransactionJob

__all__ = ["stand_by", "telling_of"]


def stand_by(job: StreamJob | TransactionJob, supervisor: Channel) -> bool:
    """Be warm until the job has no driver; tell whether it had one."""
    from headrace.spark.standby import Standby

    standby = Standby(job)

    def ready() -> None:
        supervisor.tell(Word.READY)
        driver = short_driver(standby.driver()) if supervisor.alone.is_set() else ""
        elsewhere = f": {driver} runs it, or has its lease" if driver else ""
        say(f"Standing by for {job.topology.name}{elsewhere}.")

    return standby.wait(supervisor.go, alone=supervisor.alone, ready=ready)


@contextlib.contextmanager
def telling_of(
    job: StreamJob | TransactionJob, supervisor: Channel | None
) -> Iterator[Callable[[], None]]:
    """Give what tells the supervisor that the job has begun; tell it why the job ended."""
    began = False

    def begun() -> None:
        nonlocal began
        began = True
        if supervisor is not None:
            supervisor.tell(Word.DRIVING)
            threading.Thread(target=_tell_of_commit, args=(job, supervisor), daemon=True).start()

    try:
        yield begun
    except FencedError:
        if supervisor is not None:
            supervisor.tell(Word.FENCED)
        raise
    except HeadraceError as error:
        # A driver that has begun has tried as often as it is told to.
        if supervisor is not None and error.retriable and not began:
            supervisor.tell(Word.HINDERED)
        raise


def _tell_of_commit(job: StreamJob | TransactionJob, supervisor: Channel) -> None:
    with contextlib.suppress(HeadraceError):
        job.await_commit()
        supervisor.tell(Word.COMMITTED)
