from __future__ import annotations

import pytest

from headrace.connect.config import Masking, Secret
from headrace.connect.handling import ErrorPolicy, Patience
from headrace.errors import ConnectorConfigError


def test_defaults_tolerate_nothing_and_try_once() -> None:
    policy = ErrorPolicy.of({}, "sink")
    assert (policy.tolerates, policy.tolerates_put, policy.logs) == (False, False, False)
    assert policy.patience == Patience(0.0, 60.0)


def test_task_that_asks_for_more_time_gets_it_unless_a_limit_is_set() -> None:
    assert ErrorPolicy.of({}, "sink").task_patience.budget is None
    limited = ErrorPolicy.of({"errors.retry.timeout": "5000"}, "sink")
    assert limited.task_patience == Patience(5.0, 5.0)
    assert limited.patience == Patience(5.0, 60.0)
    slow = ErrorPolicy.of({"errors.retry.delay.max.ms": "9000"}, "sink")
    assert slow.task_patience == Patience(None, 9.0)


@pytest.mark.defect(8)
def test_timeout_of_minus_one_is_for_ever() -> None:
    texts = {"errors.retry.timeout": "-1", "errors.retry.delay.max.ms": "1000"}
    assert ErrorPolicy.of(texts, "source").patience == Patience(None, 1.0)


def test_wrong_value_is_refused_with_its_key() -> None:
    with pytest.raises(ConnectorConfigError, match="errors"):
        ErrorPolicy.of({"errors.tolerance": "some"}, "source")


def test_secrets_are_hidden_the_longest_first() -> None:
    masking = Masking.of(
        {"a": Secret("word"), "b": Secret("password"), "c": "shown", "d": Secret("x")}
    )
    assert masking("password word shown x") == "******** ******** shown x"
