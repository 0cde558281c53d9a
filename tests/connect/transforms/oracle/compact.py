"""Writes the oracle's answers as case files: schemas, records and cases, a line each."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class Compact:
    """One file: each schema and each record stands in it once."""

    def __init__(self) -> None:
        self.schemas: dict[str, Any] = {}
        self.records: dict[str, Any] = {}

    def schema(self, node: dict[str, Any] | None) -> int | None:
        return None if node is None else number(self.schemas, node)

    def record(self, node: dict[str, Any]) -> int:
        slim = {
            **{name: one for name, one in node.items() if not name.endswith("_schema")},
            "key_schema": self.schema(node["key_schema"]),
            "value_schema": self.schema(node["value_schema"]),
        }
        slim["headers"] = [[key, self.schema(of), one] for key, of, one in slim.pop("headers")]
        return number(self.records, slim)

    def case(self, one: dict[str, Any]) -> list[Any]:
        expect = dict(one["expect"])
        plugin = one["class"].rpartition(".")[2]
        record = self.record(one["record"])
        if expect.get("record") is not None:
            expect["record"] = self.record(expect["record"])
        return [one["name"], plugin, one["config"], record, expect]


def number(known: dict[str, Any], node: dict[str, Any]) -> int:
    # By text: 0.0 and -0.0 are two.
    text = json.dumps(node)
    known.setdefault(text, node)
    return list(known).index(text)


def block(name: str, items: Iterable[Any]) -> str:
    lines = (json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in items)
    return f'"{name}": [\n' + ",\n".join(lines) + "\n]"


def main(source: Path, target: Path) -> None:
    """Write a case file for each file of answers."""
    for path in sorted(source.glob("*.json")):
        file = Compact()
        cases = [file.case(one) for one in json.loads(path.read_text())]
        blocks = [
            block("schemas", file.schemas.values()),
            block("records", file.records.values()),
            block("cases", cases),
        ]
        (target / path.name).write_text("{" + ",\n".join(blocks) + "}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
