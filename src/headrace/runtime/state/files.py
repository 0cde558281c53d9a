"""State stores as files: a line of JSON per entry, to keep, to move and to read."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

import orjson

from headrace.errors import StateError
from headrace.runtime.commit.drivers import DriverName
from headrace.runtime.commit.lease import Lease
from headrace.runtime.state.rescaling import layout_of
from headrace.runtime.state.steps import StateStep
from headrace.topology.names import commit_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.runtime.state.home import StateHome
    from headrace.runtime.state.layouts import StateEntry
    from headrace.runtime.state.views import StateView

__all__ = ["entry_line", "exported", "import_state"]


def entry_line(entry: StateEntry) -> str:
    """Write an entry for people: key, window and value as JSON, or as text where JSON has no form.

    >>> from headrace.runtime.state.layouts import StateEntry
    >>> entry_line(StateEntry("k", 3))
    '{"key":"k","value":3}'
    """
    told: dict[str, Any] = {"key": entry.key}
    if entry.start is not None:
        told |= {"start": entry.start, "end": entry.end}
    if entry.part:
        told["part"] = entry.part
    if entry.item is not None:
        told["item"] = entry.item
    told["value"] = entry.value
    return orjson.dumps(told, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()


def exported(view: StateView) -> Iterator[str]:
    """Write every entry of a store as a line, exactly: keys and values in base64."""
    for key, value in view.raw():
        line = {"key": b64encode(key).decode(), "value": b64encode(value).decode()}
        yield orjson.dumps(line).decode()


def import_state(home: StateHome, operator: str, lines: Iterable[str]) -> int:
    """Let the store of an operator hold what a file holds, in one committed step.

    Gives the number of entries.

    Raises
    ------
    StateError
        A driver of the job runs, the job has no such state, or a line is no entry.
    """
    entries = dict(map(_entry, enumerate(lines, start=1)))
    last = home.record()
    if operator not in {*last.stores, *(state.store for state in last.states)}:
        raise StateError(
            f"job '{home.job}' has no state of an operator '{operator}'",
            hint=f"it has state of {', '.join(last.stores) or 'none'}",
        )
    owner = str(DriverName.here())
    lease = Lease(home.client, home.job, commit_topic(home.job), owner)
    lease.require()
    try:
        record = home.transactions.open(owner).record
        home.transactions.publish(record)
        step = StateStep(home, record, record.partitions)
        layout = layout_of(record, operator)
        step.replace(operator, entries, None if layout.everywhere else layout.places)
        step.commit(record)
    finally:
        home.transactions.close()
        lease.release()
    return len(entries)


def _entry(numbered: tuple[int, str]) -> tuple[bytes, bytes]:
    number, line = numbered
    try:
        told = orjson.loads(line)
        return b64decode(told["key"], validate=True), b64decode(told["value"], validate=True)
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"line {number} is no entry of a state store: {type(error).__name__}: {error}",
            hint='headrace state export writes such lines: {"key": BASE64, "value": BASE64}',
        ) from None
