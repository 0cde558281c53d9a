"""``headrace run --timeout`` counts from the begin of the command, whatever its start takes."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from headrace.cli._run import _Limit
from headrace.errors import RequestTimeoutError


def test_what_a_start_took_is_no_longer_there() -> None:
    rest = _Limit(time.time() - 8, timedelta(seconds=10)).rest()
    assert rest is not None
    assert timedelta(seconds=1) < rest <= timedelta(seconds=2)
    assert _Limit(time.time() - 20, timedelta(seconds=10)).rest() == timedelta(0)
    assert _Limit(time.time(), None).rest() is None


def test_the_whole_limit_is_named() -> None:
    told = _Limit(time.time() - 12, timedelta(seconds=10)).told("words")
    with pytest.raises(RequestTimeoutError, match="'words' has not caught up 0:00:10 after"), told:
        raise RequestTimeoutError("job 'words' did not catch up within 0:00:02", hint="lag")


def test_a_broker_that_does_not_answer_is_another_matter() -> None:
    told = _Limit(time.time(), timedelta(seconds=10)).told("words")
    with pytest.raises(RequestTimeoutError, match="no answer"), told:
        raise RequestTimeoutError("no answer")
