"""Queues that a follower reads from the beginning are not compacted meanwhile."""

from __future__ import annotations

from headrace.broker.replication.replicas import RebuildLeases, SessionLease

KEY = ("prices", 0, 44)


class Compactions:
    """Which queues are paused."""

    def __init__(self) -> None:
        self.paused: set[tuple[str, int, int]] = set()
        self.running = False

    def pause(self, key: tuple[str, int, int]) -> bool:
        if not self.running:
            self.paused.add(key)
        return not self.running

    def leases(self) -> RebuildLeases:
        return RebuildLeases(60, self.pause, self.paused.discard)


def test_queue_is_paused_from_the_first_request_to_the_end() -> None:
    compactions = Compactions()
    leases = compactions.leases()
    assert leases.touch(KEY, "s", first=True, now=0) is SessionLease.GRANTED
    assert leases.touch(KEY, "s", first=False, now=1) is SessionLease.GRANTED
    assert compactions.paused == {KEY}
    leases.end(KEY, "s")
    assert compactions.paused == set()


def test_queue_that_is_being_compacted_is_busy() -> None:
    compactions = Compactions()
    compactions.running = True
    leases = compactions.leases()
    assert leases.touch(KEY, "s", first=True, now=0) is SessionLease.BUSY
    compactions.running = False
    assert leases.touch(KEY, "s", first=True, now=0) is SessionLease.GRANTED


def test_two_followers_hold_a_queue_until_the_last_is_done() -> None:
    compactions = Compactions()
    leases = compactions.leases()
    for session in "ab":
        leases.touch(KEY, session, first=True, now=0)
    leases.end(KEY, "a")
    assert compactions.paused == {KEY}
    leases.end(KEY, "b")
    assert compactions.paused == set()


def test_session_that_is_silent_for_too_long_is_lost() -> None:
    compactions = Compactions()
    leases = compactions.leases()
    leases.touch(KEY, "s", first=True, now=0)
    leases.touch(KEY, "s", first=False, now=50)
    leases.expire(now=109)
    assert compactions.paused == {KEY}
    leases.expire(now=110)
    assert compactions.paused == set()
    assert leases.touch(KEY, "s", first=False, now=111) is SessionLease.LOST
    assert leases.touch(KEY, "never", first=False, now=111) is SessionLease.LOST
