"""What a driver does for its supervisor: it stands by when it is asked to, and tells how it stands."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headrace.cli._terminal import say
from headrace.cli.supervision.channel import Channel, Word
from headrace.errors import FencedError, HeadraceError

if TYPE_CHECKING:
    from headrace.spark import StreamJob, TransactionJob

__all__ = ["stand_by", "telling_of"]


def stand_by(job: StreamJob | TransactionJob, supervisor: Channel) -> bool:
    """Be warm until the job has no driver; tell whether it had one."""
    from headrace.spark.standby import Standby

    def ready() -> None:
        supervisor.tell(Word.READY)
        say(f"Standing by for {job.topology.name}.")

    return Standby(job).wait(supervisor.go, alone=supervisor.alone, ready=ready)


@contextlib.contextmanager
def telling_of(
    job: StreamJob | TransactionJob, supervisor: Channel | None
) -> Iterator[Callable[[], None]]:
    """Give what tells the supervisor that the job has begun; tell it when another takes it over."""

    def begun() -> None:
        if supervisor is not None:
            supervisor.tell(Word.DRIVING)
            threading.Thread(target=_tell_of_commit, args=(job, supervisor), daemon=True).start()

    try:
        yield begun
    except FencedError:
        if supervisor is not None:
            supervisor.tell(Word.FENCED)
        raise


def _tell_of_commit(job: StreamJob | TransactionJob, supervisor: Channel) -> None:
    with contextlib.suppress(HeadraceError):
        job.await_commit()
        supervisor.tell(Word.COMMITTED)
