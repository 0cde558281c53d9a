"""Sends the records of the model to a job, and holds what it wrote against the model."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from headrace import serdes
from headrace.runtime.testing import TestInput
from headrace.runtime.testing.topics import Sent as Message
from headrace.spark import SparkReplay
from tests.streams.model.inputs import Sent
from tests.streams.model.jobs import output
from tests.streams.model.plans import Plan
from tests.streams.test_model import EPOCH, KEYED, compared, expected, record

__all__ = ["check", "messages"]


def messages(sent: Sequence[Sent]) -> list[Message]:
    """Write records as messages."""
    taken: list[Message] = []
    for one in sent:
        time = EPOCH + timedelta(milliseconds=one.time)
        way: Any = TestInput(one.topic, serdes.json, one.queue, taken.extend, datetime.now)
        way.send(one.value, key=one.key, time=time)
    return taken


def check(replay: SparkReplay, plans: Sequence[Plan], sent: Sequence[Sent]) -> None:
    """Compare what every plan gave with what the model says."""
    written = replay.read()
    for number, plan in enumerate(plans):
        rows = [record(message.read(KEYED)) for message in written[output(number)]]
        assert compared(plan, rows) == expected(plan, sent), plan
