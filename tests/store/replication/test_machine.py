"""Three copies of a log, any of which may be killed, promoted, cut off or brought back."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings as effort, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.store import MessageStore
from headrace.store.replication.following import Halt
from tests.store.replication.pair import (
    LOG,
    InProcess,
    open_store,
    promote,
    segments,
    write_some,
)
from tests.store.samples import contents

NODES = 3
TERM = 1000
#: Of three nodes one leads, and the others follow or lie dead with what they had.
FOLLOWERS = st.integers(0, NODES - 2)


class Replication(RuleBasedStateMachine):
    """One primary, and followers that go on from whatever state they are in."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.numbers = 0
        self.primary: MessageStore = open_store(self.root / "0")
        self.primary_path = self.root / "0"
        self.followers = [self.follow(self.root / str(one)) for one in range(1, NODES)]

    def follow(self, path: Path, log: str = "") -> InProcess:
        return InProcess(path, lambda: self.primary, log=log, max_bytes=700)

    @rule(count=st.integers(1, 4))
    def write(self, count: int) -> None:
        for _ in range(count):
            write_some(self.primary, self.numbers)
            self.numbers += 1

    @rule(which=FOLLOWERS, steps=st.integers(1, 12))
    def follow_on(self, which: int, steps: int) -> None:
        for _ in range(steps):
            assert not isinstance(self.followers[which].step(), Halt)

    @rule(which=FOLLOWERS)
    def crash_follower(self, which: int) -> None:
        self.followers[which].crash()

    @rule()
    def restart_primary(self) -> None:
        self.primary.close()
        (self.primary_path / "checkpoint").unlink(missing_ok=True)
        self.primary = open_store(self.primary_path)
        promote(self.primary)

    @rule(which=FOLLOWERS, alone=st.integers(0, 3))
    def fail_over(self, which: int, alone: int) -> None:
        """The primary is cut off, writes on for a while, and comes back as a follower."""
        follower = self.followers[which]
        old, old_path = self.primary, self.primary_path
        # A follower remembers the newest epoch that it heard of, also when it has it not.
        term = (old.replication.epochs.latest // TERM + 1) * TERM
        follower.store.replication.open_epoch(term).result()
        follower.store.replication.refuse(None)
        self.primary, self.primary_path = follower.store, follower.path
        for _ in range(alone):
            write_some(old, self.numbers)
            self.numbers += 1
        old.close()
        self.followers[which] = self.follow(old_path, LOG)

    @rule(which=FOLLOWERS)
    def lose_follower(self, which: int) -> None:
        """A disk is replaced by an empty one."""
        follower = self.followers[which]
        follower.store.close()
        shutil.rmtree(follower.path)
        self.followers[which] = self.follow(follower.path)

    @precondition(lambda self: self.numbers > 0)
    @rule(which=FOLLOWERS)
    def catch_up(self, which: int) -> None:
        follower = self.followers[which]
        follower.catch_up()
        assert not isinstance(follower.instruction, Halt)
        assert segments(follower.path) == segments(self.primary_path)
        assert contents(follower.store) == contents(self.primary)
        assert follower.store.replication.epochs == self.primary.replication.epochs

    @invariant()
    def follower_shows_nothing_but_whole_units(self) -> None:
        for follower in self.followers:
            held = contents(follower.store)
            units = len(held.get(("commits", 0), []))
            assert len(held.get(("counts", 2), [])) == 3 * units

    def teardown(self) -> None:
        for follower in self.followers:
            follower.store.close()
        self.primary.close()
        shutil.rmtree(self.root)


TestReplication = Replication.TestCase
TestReplication.settings = effort(
    max_examples=15,
    stateful_step_count=25,
    deadline=None,
    # To shrink a failure takes longer than a test may; its steps say enough.
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
