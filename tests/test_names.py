"""docs/reference/names.md maps every name of RIP-58 to ours, and is held against the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "names.md"

# Classes, methods, properties and statics of RIP-58 and of the library that follows it.
NAMES_OF_THE_PROPOSAL = [
    "StreamBuilder",
    "jobId",
    "TopologyBuilder",
    "Properties",
    "RStream",
    "flatMapValues",
    "GroupedStream",
    "toRStream",
    "WindowStream",
    "JoinedStream",
    "WindowInfo",
    "Time",
    "ValueMapperAction",
    "FilterAction",
    "ForeachAction",
    "SelectAction",
    "AggregateAction",
    "ValueJoinAction",
    "Accumulator",
    "KeyValueDeserializer",
    "KeyValueSerializer",
    "Pair",
    "RocketMQStream",
    "Processor",
    "StateStore",
    "RealProcessorFactory",
    "Data",
    "StreamContext",
    "rocketmq.namesrv.addr",
    "timeType",
    "allowLatenessMillisecond",
    "idleTimeToFireWindow",
    "commitStateIntervalMillisecond",
    "consume_from_where",
    "skip_data_error",
]


def rows() -> list[tuple[str, str, str]]:
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) >= 2:
            found.append((cells[0], cells[1], cells[2] if len(cells) > 2 else ""))
    return found


def resolve(dotted: str) -> object:
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for name in parts[cut:]:
            fields = getattr(found, "__dataclass_fields__", {})
            found = fields[name] if name in fields else getattr(found, name)
        return found
    raise ModuleNotFoundError(dotted)


@pytest.mark.parametrize(
    "ours",
    sorted({name for _, ours, _ in rows() for name in re.findall(r"`(headrace[\w.]+)`", ours)}),
)
def test_every_name_of_ours_exists(ours: str) -> None:
    assert resolve(ours) is not None


def test_every_row_has_a_name_of_ours_or_a_reason() -> None:
    bare = [theirs for theirs, ours, notes in rows() if "`" not in ours and len(notes) < 3]
    assert bare == []


def test_no_name_stands_twice() -> None:
    names = [theirs for theirs, _, _ in rows()]
    assert [name for name in names if names.count(name) > 1] == []


@pytest.mark.parametrize("name", NAMES_OF_THE_PROPOSAL)
def test_every_name_of_the_proposal_has_a_row(name: str) -> None:
    assert any(name in theirs for theirs, _, _ in rows())
