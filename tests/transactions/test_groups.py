"""Groups: spouts that meet in state succeed and roll back together; others do not."""

from __future__ import annotations

import pytest

from headrace import TopologyError, serdes
from headrace.topology import Bolt, Spout, Subscription
from headrace.transactions import TopicSink, TransactionTopologyBuilder
from tests.transactions.components import Count, End, Pass, Words


def two_spouts() -> TransactionTopologyBuilder:
    builder = TransactionTopologyBuilder("job")
    builder.set_spout("a", Words())
    builder.set_spout("b", Words())
    return builder


def test_spouts_that_share_nothing_are_two_groups() -> None:
    """R33."""
    builder = two_spouts()
    builder.set_bolt("count-a", Count()).fields_grouping("a", "word")
    builder.set_bolt("count-b", Count()).fields_grouping("b", "word")
    built = builder.build()
    assert [group.name for group in built.groups] == ["job", "job-b"]
    assert [[o.name for o in group.operators] for group in built.groups] == [
        ["a", "a-to-count-a", "count-a"],
        ["b", "b-to-count-b", "count-b"],
    ]
    assert (built.group_of("a"), built.group_of("b")) == (0, 1)
    numbers = [o.group_id for g in built.groups for o in g.operators if isinstance(o, Spout | Bolt)]
    assert numbers == [0, 0, 1, 1]


def test_spouts_that_meet_in_state_are_one_group_and_describe_says_why() -> None:
    """R34."""
    builder = two_spouts()
    builder.set_bolt("join", Count()).fields_grouping("a", "word").fields_grouping("b", "word")
    built = builder.build()
    assert [group.name for group in built.groups] == ["job"]
    assert "group 0, job job: spouts a, b, which meet in the state of join" in built.describe()


def test_spouts_meet_far_behind_stateless_bolts_too() -> None:
    """R34."""
    builder = two_spouts()
    builder.set_bolt("pass-a", Pass()).shuffle_grouping("a")
    builder.set_bolt("pass-b", Pass()).shuffle_grouping("b")
    join = builder.set_bolt("join", Count())
    join.fields_grouping("pass-a", "word").fields_grouping("pass-b", "word")
    assert len(builder.build().groups) == 1


def test_groups_that_touch_are_one() -> None:
    """R34: a meets b, and b meets c."""
    builder = two_spouts()
    builder.set_spout("c", Words())
    builder.set_bolt("ab", Count()).fields_grouping("a", "word").fields_grouping("b", "word")
    builder.set_bolt("bc", Count()).fields_grouping("b", "word").fields_grouping("c", "word")
    built = builder.build()
    assert [built.group_of(spout) for spout in "abc"] == [0, 0, 0]
    assert "spouts a, b, c, which meet in the state of ab, bc" in built.describe()


def test_a_stateless_bolt_that_two_groups_share_is_in_both() -> None:
    """R33."""
    builder = two_spouts()
    builder.set_bolt("pass", Pass(), 2).shuffle_grouping("a").shuffle_grouping("b")
    builder.set_sink("out", TopicSink("out", serdes.string)).shuffle_grouping("pass")
    first, second = builder.build().groups
    assert [o.name for o in first.operators] == [
        "a",
        "a-to-pass",
        "pass",
        "pass-to-out",
        "out",
    ]
    assert [o.name for o in second.operators if isinstance(o, Subscription)] == ["b-to-pass"]


def test_a_spout_that_is_added_later_renames_no_job() -> None:
    def built(*later: str) -> list[str]:
        builder = TransactionTopologyBuilder("job")
        for name in ("a", *later):
            builder.set_spout(name, Words())
            builder.set_bolt(f"count-{name}", Count()).fields_grouping(name, "word")
        return [group.name for group in builder.build().groups]

    assert (built(), built("b"), built("b", "c")) == (
        ["job"],
        ["job", "job-b"],
        ["job", "job-b", "job-c"],
    )


def test_the_name_of_a_group_must_fit_topics() -> None:
    builder = TransactionTopologyBuilder("j" * 60)
    for name in ("a", "s" * 60):
        builder.set_spout(name, Words())
        builder.set_bolt(f"e-{name[0]}", End()).shuffle_grouping(name)
    with pytest.raises(TopologyError, match=r"(?s)characters; at most .* of spout 's+'"):
        builder.build()
