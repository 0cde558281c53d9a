from __future__ import annotations

from hypothesis import given, strategies as st

from headrace.protocol.groups import average_rule
from headrace.protocol.routes import MessageQueue

MEMBERS = st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=12, unique=True)


def by_javas_formula(queues: int, members: int, index: int) -> list[int]:
    """The rule as RocketMQ's clients compute it."""
    mod = queues % members
    size = 1 if queues <= members else queues // members + (1 if mod > 0 and index < mod else 0)
    start = index * size if mod > 0 and index < mod else index * size + mod
    return list(range(start, start + max(0, min(size, queues - start))))


@given(st.integers(0, 40), MEMBERS)
def test_rule_equals_javas(queues: int, members: list[str]) -> None:
    order = sorted(members, key=lambda member: member.encode("utf-16-be", "surrogatepass"))
    for index, me in enumerate(order):
        wanted = by_javas_formula(queues, len(members), index)
        assert average_rule(range(queues), members, me) == wanted


@given(st.integers(0, 40), MEMBERS)
def test_every_queue_has_one_reader(queues: int, members: list[str]) -> None:
    shares = [average_rule(range(queues), members, me) for me in members]
    assert sorted(queue for share in shares for queue in share) == list(range(queues))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_order_of_the_arguments_does_not_matter() -> None:
    queues = [MessageQueue("t", broker, number) for broker in "ba" for number in (10, 2, 1)]
    assert average_rule(queues, ["y", "x"], "x") == [MessageQueue("t", "a", n) for n in (1, 2, 10)]
    assert average_rule(reversed(queues), ["x", "y", "y"], "x") == average_rule(
        queues, ["x", "y"], "x"
    )


def test_stranger_gets_nothing() -> None:
    assert average_rule(range(4), ["a"], "b") == []
    assert average_rule(range(4), [], "b") == []
