"""Cases of a file, run by an outside client that knows nothing of the server's code.

A case is a list of steps; a step sends a request and says what the answer must look like, if need
be after a while.  What the words in expectations mean stands at the top of the file.
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from email.message import Message
from typing import Any
from urllib.parse import quote, urlencode

__all__ = ["Names", "fill", "run_case", "sweep"]

Names = Mapping[str, Any]
"""What stands for ``${name}`` in cases."""

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "int": int,
    "number": (int, float),
    "bool": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}


def fill(value: Any, names: Names) -> Any:
    """Put names in their places."""
    if isinstance(value, str):
        whole = re.fullmatch(r"\$\{(\w+)\}", value)
        if whole:
            return names["run"] if whole[1] == "run" else fill(names[whole[1]], names)
        return re.sub(r"\$\{(\w+)\}", lambda found: str(fill(names[found[1]], names)), value)
    if isinstance(value, list):
        return [fill(one, names) for one in value]
    if isinstance(value, dict):
        if set(value) == {"$merge"}:
            merged: dict[str, Any] = {}
            for part in value["$merge"]:
                merged.update(fill(part, names))
            return merged
        return {fill(key, names): fill(one, names) for key, one in value.items()}
    return value


def run_case(case: Mapping[str, Any], base: str, names: Names) -> None:
    """Run one case; raise AssertionError with the first step that went wrong."""
    for number, given in enumerate(case["steps"]):
        step = fill(given, names)
        patience = step.get("poll", {}).get("timeout_s", 0)
        deadline = time.monotonic() + patience
        while (trouble := _attempt(base, step)) is not None:
            if time.monotonic() >= deadline:
                asked = f"{step['request']['method']} {step['request']['path']}"
                raise AssertionError(f"step {number} {asked}: {trouble}")
            time.sleep(min(step["poll"]["interval_s"], 0.05))


def sweep(base: str, run: str) -> None:
    """Delete what a failed case left behind."""
    for name in json.loads(_call(base, {"method": "GET", "path": "/connectors"}, 10)[2]):
        if run in name:
            _call(base, {"method": "DELETE", "path": f"/connectors/{quote(name)}"}, 10)


def _attempt(base: str, step: Mapping[str, Any]) -> str | None:
    expect = step["expect"]
    began = time.monotonic()
    try:
        status, headers, body = _call(base, step["request"], max(30, expect.get("max_seconds", 0)))
    except OSError as error:
        return f"no reply: {error}"
    took = time.monotonic() - began
    if status != expect["status"]:
        return f"status {status}, want {expect['status']}: {body[:300]!r}"
    if took > expect.get("max_seconds", 5):
        return f"took {took:.1f} s"
    for name, want in expect.get("headers", {}).items():
        if trouble := _difference(want, headers.get(name), name):
            return trouble
    if "json" not in expect:
        return None
    try:
        got = json.loads(body)
    except ValueError:
        return f"body is not JSON: {body[:200]!r}"
    return _difference(expect["json"], got)


def _call(base: str, asked: Mapping[str, Any], patience: float) -> tuple[int, Message, bytes]:
    url = base + asked["path"].replace(" ", "%20")
    if asked.get("query"):
        url += f"?{urlencode(asked['query'])}"
    body, headers = None, {"Accept": "application/json"}
    if "json" in asked:
        body, headers["Content-Type"] = json.dumps(asked["json"]).encode(), "application/json"
    if "raw" in asked:
        body = asked["raw"].encode()
        headers["Content-Type"] = asked.get("content_type", "application/json")
    request = urllib.request.Request(url, data=body, method=asked["method"], headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=patience) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def _difference(want: Any, got: Any, at: str = "$") -> str | None:
    """The first difference as text, or None."""
    if isinstance(want, dict) and want and all(key.startswith("$") for key in want):
        return _mismatch(want, got, at)
    if isinstance(want, dict):
        if not isinstance(got, dict):
            return f"{at}: want an object, got {_shown(got)}"
        for key, part in want.items():
            if isinstance(part, dict) and part.get("$absent"):
                if key in got:
                    return f"{at}.{key}: should be absent"
            elif key not in got:
                return f"{at}.{key}: missing from {_shown(got)}"
            elif found := _difference(part, got[key], f"{at}.{key}"):
                return found
        return None
    if isinstance(want, list):
        if not isinstance(got, list) or len(want) != len(got):
            return f"{at}: want {want}, got {_shown(got)}"
        pairs = enumerate(zip(want, got, strict=True))
        return next((d for n, (w, g) in pairs if (d := _difference(w, g, f"{at}[{n}]"))), None)
    same = want == got and type(want) is type(got)
    return None if same else f"{at}: want {want!r}, got {got!r}"


def _mismatch(want: Mapping[str, Any], got: Any, at: str) -> str | None:
    for matcher, wanted in want.items():
        if not _MATCHERS[matcher](wanted, got):
            return f"{at}: is not {matcher} {wanted}; got {_shown(got)}"
    return None


def _is(kind: str, got: Any) -> bool:
    if isinstance(got, bool) and kind in {"int", "number"}:
        return False
    return isinstance(got, _TYPES[kind])


_MATCHERS: dict[str, Callable[[Any, Any], bool]] = {
    "$type": _is,
    "$regex": lambda want, got: isinstance(got, str) and re.search(want, got) is not None,
    "$in": lambda want, got: got in want,
    "$gt": lambda want, got: isinstance(got, (int, float)) and got > want,
    "$len": lambda want, got: isinstance(got, (list, dict)) and len(got) == want,
    "$min": lambda want, got: isinstance(got, (list, dict)) and len(got) >= want,
    "$each": lambda want, got: isinstance(got, list) and not any(_difference(want, g) for g in got),
    "$contains": lambda want, got: (
        isinstance(got, list) and any(_difference(want, one) is None for one in got)
    ),
    "$contains_all": lambda want, got: isinstance(got, list) and all(one in got for one in want),
    "$not_contains": lambda want, got: (
        isinstance(got, list) and all(_difference(want, one) for one in got)
    ),
}


def _shown(got: Any) -> str:
    return json.dumps(got)[:400]
