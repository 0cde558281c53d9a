"""What a driver finds of the one before it on the embedded broker: a lease that nobody holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.client import Admin
from headrace.runtime.commit.drivers import DriverName

if TYPE_CHECKING:
    from headrace.client import Client
    from headrace.runtime.commit.lease import Lease

__all__ = ["free_from_the_dead"]


def free_from_the_dead(client: Client, lease: Lease, commit_topic: str) -> bool:
    """Give back the lease of a driver that is proven to be dead; tell whether there was one.

    Else it would hold for up to a minute, and another machine might get it when it ends.
    """
    for job in Admin(client).jobs():
        if job.commit_topic == commit_topic:
            holder = DriverName.parse(job.holder)
            if holder is not None and holder.is_dead():
                lease.release_for(job.holder)
                return True
    return False
