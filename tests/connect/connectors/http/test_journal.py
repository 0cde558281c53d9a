from __future__ import annotations

from pathlib import Path

import pytest

from headrace.connect.connectors.http import source
from headrace.connect.connectors.http._server import Arrival
from headrace.connect.connectors.http.source import Journal
from headrace.errors import StoreLockedError


def arrival(last: int) -> Arrival:
    value = {"n": last, "text": "é", "raw": b"\\xff"}
    return Arrival(values=[value], key="k", headers=(("a", "b"),), name=f"{last}", last=last)


def lasts(journal: Journal) -> list[int]:
    return [one.last for one in journal.recovered]


def test_requests_come_back_as_they_were(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 0)
    journal.append([arrival(1), arrival(2)])
    journal.append([arrival(3)])
    journal.close()
    again = Journal(tmp_path, 1)
    assert lasts(again) == [2, 3]
    assert again.last == 3
    found, made = again.recovered[0], arrival(2)
    assert (found.values, found.key, found.headers, found.name) == (
        made.values,
        made.key,
        made.headers,
        made.name,
    )
    again.close()


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_torn_end_is_left_out(tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(tmp_path, 0)
    journal.append([arrival(1)])
    journal.append([arrival(2)])
    journal.close()
    [path] = tmp_path.glob("*.journal")
    path.write_bytes(path.read_bytes()[:-cut])
    again = Journal(tmp_path, 0)
    assert lasts(again) == [1]
    assert "ends in the middle of a request" in caplog.text
    again.append([arrival(2)])
    again.close()
    last = Journal(tmp_path, 0)
    assert lasts(last) == [1, 2]
    last.close()


def test_committed_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_SEGMENT", 1)
    journal = Journal(tmp_path, 0)
    for number in (1, 2, 3):
        journal.append([arrival(number)])
    assert len(list(tmp_path.glob("*.journal"))) == 3
    journal.trim(2)
    assert len(list(tmp_path.glob("*.journal"))) == 1
    journal.trim(3)
    journal.append([arrival(4)])
    journal.close()
    again = Journal(tmp_path, 3)
    assert lasts(again) == [4]
    again.close()


def test_journal_has_one_user(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 0)
    with pytest.raises(StoreLockedError, match="used by another process"):
        Journal(tmp_path, 0)
    journal.close()
