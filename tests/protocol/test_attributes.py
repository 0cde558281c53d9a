from __future__ import annotations

import pytest

from headrace.errors import InvalidParameterError
from headrace.protocol.routes import apply_attributes

COMPACTION = {"cleanup.policy": "COMPACTION"}


@pytest.mark.parametrize(
    ("current", "changes", "result"),
    [
        (None, "", {}),
        (None, "+cleanup.policy=COMPACTION", COMPACTION),
        (None, " +message.type=FIFO , +reserve.time=-1 ,", {"message.type": "FIFO"}),
        (COMPACTION, "", COMPACTION),
        (COMPACTION, "+cleanup.policy=COMPACTION", COMPACTION),
        (COMPACTION, "+message.type=DELAY", COMPACTION | {"message.type": "DELAY"}),
        (COMPACTION | {"message.type": "DELAY"}, "-message.type", COMPACTION),
        ({"message.type": "DELAY"}, "+message.type=NORMAL", {"message.type": "NORMAL"}),
    ],
)
def test_changes_are_applied(
    current: dict[str, str] | None, changes: str, result: dict[str, str]
) -> None:
    found = apply_attributes(current, changes)
    assert {key: found[key] for key in result} == result
    assert len(found) == max(len(result), changes.count("+") if current is None else 0)


@pytest.mark.parametrize(
    ("current", "changes", "remark"),
    [
        (None, "+color=red", "unsupported key: color"),
        (None, "cleanup.policy=DELETE", "add/alter attribute format is wrong: cleanup"),
        (None, "+cleanup.policy", "attribute format is wrong"),
        (None, "+cleanup.policy=", "add/alter attribute format is wrong"),
        (COMPACTION, "-cleanup.policy=DELETE", "format is wrong"),
        (None, "-message.type", "nonexistent key: message.type"),
        (COMPACTION, "-message.type", "nonexistent key: message.type"),
        (COMPACTION, "+cleanup.policy=DELETE", "attempt to update an unchangeable attribute"),
        (COMPACTION, "-cleanup.policy", "attempt to update an unchangeable attribute"),
        ({}, "+queue.type=BatchCQ", "attempt to update an unchangeable attribute"),
        (None, "+cleanup.policy=compaction", "cleanup.policy cannot be compaction"),
        (None, "+message.type=MIXED", "message.type cannot be MIXED"),
        (None, "+reserve.time=soon", "reserve.time cannot be soon"),
        (None, "+reserve.time=1,+reserve.time=2", "key duplication: reserve.time"),
    ],
)
def test_what_cannot_be_is_refused_as_rocketmq_does(
    current: dict[str, str] | None, changes: str, remark: str
) -> None:
    with pytest.raises(InvalidParameterError, match=remark) as caught:
        apply_attributes(current, changes)
    assert caught.value.number == 1


def test_refused_changes_leave_the_attributes_alone() -> None:
    current = {"message.type": "DELAY"}
    with pytest.raises(InvalidParameterError):
        apply_attributes(current, "+message.type=FIFO,+color=red")
    assert current == {"message.type": "DELAY"}
