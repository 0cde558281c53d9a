"""Writes the inputs of the case files: one list of cases for each transform and predicate."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Node = dict[str, Any]

PACKAGE = "org.apache.kafka.connect.transforms."
TIMESTAMP = "org.apache.kafka.connect.data.Timestamp"
DATE = "org.apache.kafka.connect.data.Date"
TIME = "org.apache.kafka.connect.data.Time"
DECIMAL = "org.apache.kafka.connect.data.Decimal"

S = {"type": "string"}
OS = {"type": "string", "optional": True}
I8, I16, I32, I64 = ({"type": f"int{n}"} for n in (8, 16, 32, 64))
F32, F64 = {"type": "float32"}, {"type": "float64"}
B = {"type": "boolean"}
BYTES = {"type": "bytes"}
TS = {"type": "int64", "name": TIMESTAMP, "version": 1}
D = {"type": "int32", "name": DATE, "version": 1}
T = {"type": "int32", "name": TIME, "version": 1}
DEC = {"type": "bytes", "name": DECIMAL, "version": 1, "parameters": {"scale": "2"}}


def opt(schema: Node, **more: Any) -> Node:
    return {**schema, "optional": True, **more}


def struct(*fields: tuple[str, Node], **more: Any) -> Node:
    return {"type": "struct", **more, "fields": [list(f) for f in fields]}


def b(data: bytes) -> Node:
    return {"bytes": base64.b64encode(data).decode()}


def i8(n: Any) -> Node:
    return {"int8": n}


def i16(n: Any) -> Node:
    return {"int16": n}


def i32(n: Any) -> Node:
    return {"int32": n}


def i64(n: Any) -> Node:
    return {"int64": n}


def f32(n: Any) -> Node:
    return {"float32": n}


def f64(n: Any) -> Node:
    return {"float64": n}


def dec(t: str) -> Node:
    return {"decimal": t}


def date(ms: int) -> Node:
    return {"date": ms}


def m(**pairs: Any) -> Node:
    return {"map": [[k, v] for k, v in pairs.items()]}


def mm(*pairs: tuple[Any, Any]) -> Node:
    return {"map": [list(p) for p in pairs]}


def st(**pairs: Any) -> Node:
    return {"struct": [[k, v] for k, v in pairs.items()]}


def ss(*pairs: tuple[Any, Any]) -> Node:
    return {"struct": [list(p) for p in pairs]}


def li(*items: Any) -> Node:
    return {"list": list(items)}


MS = 1700000000123  # 2023-11-14T22:13:20.123Z


def rec(
    value: Any = None,
    value_schema: Node | None = None,
    *,
    key: Any = None,
    key_schema: Node | None = None,
    kind: str = "sink",
    topic: str = "orders",
    partition: int | None = 3,
    timestamp: int | None = MS,
    headers: Sequence[tuple[str, Node | None, Any]] = (),
) -> Node:
    node: Node = {"kind": kind, "topic": topic, "partition": partition}
    if kind == "sink":
        node["offset"] = 42
    node |= {
        "timestamp": timestamp,
        "key_schema": key_schema,
        "key": key,
        "value_schema": value_schema,
        "value": value,
        "headers": [list(h) for h in headers],
    }
    return node


FILES: dict[str, list[Node]] = {}


def on_key(record: Node) -> Node:
    return {
        **record,
        "key": record["value"],
        "key_schema": record["value_schema"],
        "value": "v",
        "value_schema": S,
    }


def case(
    name: str, cls: str, config: Mapping[str, str], record: Node, side: str = "$Value"
) -> None:
    full = PACKAGE + cls + (side or "")
    FILES.setdefault(cls.replace("predicates.", ""), []).append(
        {"name": name, "class": full, "config": config, "record": record}
    )


def over(cls: str, configs: Sequence[Mapping[str, str]], records: Mapping[str, Node]) -> None:
    for config in configs:
        text = ", ".join(f"{k}={v}" for k, v in config.items())
        for name, record in records.items():
            case(f"{name}: {text}", cls, config, record)
        first = next(iter(records.items()))
        case(f"key {first[0]}: {text}", cls, config, on_key(first[1]), "$Key")


def build() -> None:  # noqa: PLR0912 - all inputs, file by file
    """Make the inputs of all files."""
    # Records that most transforms meet.
    address = struct(("city", S), ("zip", opt(I32)), name="address")
    order_schema = struct(
        ("id", I64),
        ("name", OS),
        ("amount", F64),
        ("count", {"type": "int32", "default": i32(7)}),
        ("address", address),
        name="order",
        version=2,
        doc="An order.",
    )
    order = st(
        id=i64(9),
        name="Ann",
        amount=f64(12.5),
        count=i32(2),
        address=st(city="Ulm", zip=i32(89073)),
    )
    # A struct with an optional field whose default is not null.
    defaults_schema = struct(
        ("a", {"type": "string", "optional": True, "default": "dflt"}),
        ("b", OS),
        ("n", {"type": "int32", "optional": True, "default": i32(5)}),
    )
    defaults = st(a=None, b=None, n=None)
    plain = m(
        id=i32(9), name="Ann", amount=f64(12.5), nothing=None, address=m(city="Ulm", zip=i32(89073))
    )

    common = {
        "struct": rec(order, order_schema),
        "struct, source": rec(order, order_schema, kind="source"),
        "map": rec(plain),
        "map, source": rec(plain, kind="source", partition=None, timestamp=None),
        "struct with defaults": rec(defaults, defaults_schema),
        "null": rec(None),
        "null with schema": rec(None, {**order_schema, "optional": True}),
        "string": rec("text", S),
        "string without schema": rec("text"),
        "number without schema": rec(i32(5)),
    }

    over(
        "InsertField",
        [
            {"static.field": "origin", "static.value": "mill"},
            {"topic.field": "t"},
            {"partition.field": "p"},
            {"offset.field": "o"},
            {"timestamp.field": "ts"},
            {
                "topic.field": "t!",
                "partition.field": "p!",
                "offset.field": "o!",
                "timestamp.field": "ts!",
                "static.field": "s!",
                "static.value": "v",
            },
            {"topic.field": "t?", "static.field": "name", "static.value": "v"},
            {},
            {"static.field": "s"},
            {"topic.field": "t", "replace.null.with.default": "false"},
        ],
        common,
    )
    case(
        "no timestamp in a required field",
        "InsertField",
        {"timestamp.field": "ts!"},
        rec(order, order_schema, timestamp=None),
    )
    case(
        "no timestamp in an optional field",
        "InsertField",
        {"timestamp.field": "ts"},
        rec(order, order_schema, timestamp=None),
    )
    case(
        "no timestamp without schema",
        "InsertField",
        {"timestamp.field": "ts"},
        rec(plain, timestamp=None),
    )
    case(
        "no partition",
        "InsertField",
        {"partition.field": "p"},
        rec(order, order_schema, kind="source", partition=None),
    )

    over(
        "ReplaceField",
        [
            {"exclude": "name"},
            {"include": "id,name"},
            {"include": "id,name", "exclude": "name"},
            {"include": "missing"},
            {"renames": "id:key,name:title"},
            {"renames": "id:key", "include": "id"},
            {"renames": "a:x", "exclude": "b"},
            {"exclude": "id , name"},
            {},
            {"renames": "bad"},
            {"renames": "a:b:c"},
            {"renames": "a:"},
            {"exclude": "b", "replace.null.with.default": "false"},
            {"renames": "id:name"},
            {"include": "id", "renames": "name:title"},
            {"exclude": "id", "renames": "id:key"},
            {"blacklist": "name"},
            {"whitelist": "id"},
        ],
        common,
    )

    masked_schema = struct(
        ("b", B),
        ("i8", I8),
        ("i16", I16),
        ("i32", I32),
        ("i64", I64),
        ("f32", F32),
        ("f64", F64),
        ("s", S),
        ("dec", DEC),
        ("ts", TS),
        ("d", D),
        ("t", T),
        ("bytes", BYTES),
        ("arr", {"type": "array", "items": I32}),
        ("map", {"type": "map", "keys": S, "values": S}),
        ("st", struct(("x", OS))),
        ("os", OS),
    )
    masked = st(
        b=True,
        i8=i8(1),
        i16=i16(2),
        i32=i32(3),
        i64=i64(4),
        f32=f32(1.5),
        f64=f64(2.5),
        s="secret",
        dec=dec("1.20"),
        ts=date(MS),
        d=date(86400000),
        t=date(1000),
        bytes=b(b"xy"),
        arr=li(i32(1)),
        map=m(k="v"),
        st=st(x="y"),
        os=None,
    )
    masked_map = m(
        b=True,
        i8=i8(1),
        i16=i16(2),
        i32=i32(3),
        i64=i64(4),
        f32=f32(1.5),
        f64=f64(2.5),
        s="secret",
        dec=dec("1.20"),
        ts=date(MS),
        bytes=b(b"xy"),
        arr=li(i32(1)),
        map=m(k="v"),
        os=None,
    )
    for field in masked["struct"]:
        for config in (
            {"fields": field[0]},
            {"fields": field[0], "replacement": "42"},
            {"fields": field[0], "replacement": "***"},
            {"fields": field[0], "replacement": "300.5"},
        ):
            text = ", ".join(f"{k}={v}" for k, v in config.items())
            case(f"struct: {text}", "MaskField", config, rec(masked, masked_schema))
            if field[0] in dict(masked_map["map"]):
                case(f"map: {text}", "MaskField", config, rec(masked_map))
    over(
        "MaskField",
        [
            {"fields": "name,id"},
            {"fields": "missing"},
            {"fields": "name", "replacement": ""},
            {"fields": ""},
            {},
            {"fields": "name,id", "replacement": "7"},
            {"fields": "a,n"},
            {"fields": "b", "replace.null.with.default": "false"},
        ],
        common,
    )

    types = ["int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string"]
    whole: list[tuple[str, Node, Any]] = [
        ("int8", I8, i8(-5)),
        ("int16", I16, i16(300)),
        ("int32", I32, i32(70000)),
        ("int64", I64, i64(5000000000)),
        ("float32", F32, f32(1.75)),
        ("float64", F64, f64(-2.5)),
        ("boolean", B, True),
        ("boolean false", B, False),
        ("string int", S, "42"),
        ("string float", S, "4.5"),
        ("string true", S, "TRUE"),
        ("string text", S, "text"),
        ("string with spaces", S, " 7 "),
        ("empty string", S, ""),
        ("string exponent", S, "1e3"),
        ("string plus", S, "+8"),
        ("string out of range", S, "999"),
        ("string infinity", S, "Infinity"),
        ("string with underscore", S, "1_0"),
        ("string with suffix", S, "1.5f"),
        ("bytes", BYTES, b(b"ab")),
        ("large float", F64, f64(1e30)),
        ("nan", F64, f64("NaN")),
        ("zero", I32, i32(0)),
        ("infinity", F32, f32("Infinity")),
        ("tenth", F64, f64(0.1)),
        ("tenth32", F32, f32(0.1)),
        ("big float", F64, f64(12345678.9)),
        ("tiny float", F64, f64(0.000012)),
        ("whole float", F64, f64(100.0)),
        ("float32 of int", F32, f32(16777216)),
        ("near zero", F64, f64(0.4)),
        ("minus zero", F64, f64(-0.0)),
        ("timestamp", TS, date(MS)),
        ("date", D, date(86400000 * 20)),
        ("time", T, date(3600000)),
        ("decimal", DEC, dec("12.34")),
        ("old timestamp", TS, date(-1)),
        ("round timestamp", TS, date(1700000000000)),
    ]
    for target in types:
        for name, schema, value in whole:
            case(f"{name} to {target}", "Cast", {"spec": target}, rec(value, schema))
            case(f"{name} without schema to {target}", "Cast", {"spec": target}, rec(value))
    over(
        "Cast",
        [
            {"spec": "id:string,amount:int32"},
            {"spec": "count:string"},
            {"spec": "name:int32"},
            {"spec": "missing:int8"},
            {"spec": "id:int8"},
            {"spec": "address:string"},
            {"spec": "nonsense"},
            {"spec": "id:nonsense"},
            {"spec": ""},
            {},
            {"spec": "id:int8,int16"},
            {"spec": "int8,int16"},
            {"spec": "a:string,n:int64"},
            {"spec": "n:string", "replace.null.with.default": "false"},
            {"spec": "id:array"},
            {"spec": "id:bytes"},
            {"spec": "nothing:int32"},
            {"spec": "amount:boolean"},
        ],
        common,
    )
    case("optional whole null", "Cast", {"spec": "int8"}, rec(None, opt(I32)))
    case(
        "whole with default",
        "Cast",
        {"spec": "string"},
        rec(i32(3), {"type": "int32", "default": i32(7), "name": "n", "version": 2, "doc": "d"}),
    )
    case(
        "logical field keeps no name",
        "Cast",
        {"spec": "ts:int64,d:int32,dec:string,t:string"},
        rec(masked, masked_schema),
    )
    case("decimal to float", "Cast", {"spec": "dec:float64"}, rec(masked, masked_schema))
    case(
        "parameters",
        "Cast",
        {"spec": "string"},
        rec(i32(3), {"type": "int32", "parameters": {"a": "b"}}),
    )

    over(
        "ExtractField",
        [
            {"field": "id"},
            {"field": "missing"},
            {"field": "nothing"},
            {"field": "address"},
            {"field": "address.city"},
            {"field": "address.city", "field.syntax.version": "V2"},
            {"field": "address.missing", "field.syntax.version": "v2"},
            {"field": "missing.deeper", "field.syntax.version": "V2"},
            {"field": "`address`.zip", "field.syntax.version": "V2"},
            {"field": "count"},
            {"field": "a"},
            {"field": "a", "replace.null.with.default": "false"},
            {},
            {"field": "id", "field.syntax.version": "V3"},
            {"field": "name.first", "field.syntax.version": "V2"},
            {"field": "", "field.syntax.version": "V2"},
            {"field": ""},
            {"field": "`address", "field.syntax.version": "V2"},
            {"field": "nothing.x", "field.syntax.version": "V2"},
        ],
        common,
    )
    dotted = mm(
        ("a.b", m(c=i32(1))),
        ("x", mm(("y.z", i32(2)), ("`", i32(3)))),
        ("`a", i32(4)),
        ("a`b", i32(5)),
        ("s", "t"),
    )
    for path in [
        "`a.b`.c",
        "x.`y.z`",
        "a.b",
        "x.`",
        "a`b",
        "`a",
        "`a`",
        "`a`b",
        "`a.b`",
        "x..y",
        "x.",
        ".x",
        "`x.y",
        "`a\\`b`",
        "`a.b`c.d",
        "s.t",
        "`x`.`y.z`",
        "``",
        "x.```",
    ]:
        case(
            f"path {path}",
            "ExtractField",
            {"field": path, "field.syntax.version": "V2"},
            rec(dotted),
        )

    deep_schema = struct(
        ("a", struct(("b", struct(("c", I32))), ("d", OS))),
        ("e", opt(struct(("f", S), ("g", {"type": "int32", "default": i32(3)})))),
        ("arr", {"type": "array", "items": S}),
        ("h", S),
        name="deep",
        version=1,
    )
    deep = st(a=st(b=st(c=i32(1)), d=None), e=None, arr=li("x"), h="h")
    deep_full = st(a=st(b=st(c=i32(1)), d="d"), e=st(f="f", g=i32(4)), arr=li("x"), h="h")
    flat = {
        **common,
        "deep": rec(deep, deep_schema),
        "deep full": rec(deep_full, deep_schema),
        "deep map": rec(
            m(a=m(b=m(c=i32(1)), d=None), e=None, h="h", s=i64(1), bo=True, by=b(b"x"), f=f32(1.5))
        ),
        "map with list": rec(m(a=li(i32(1)), b=m(c=li()))),
        "empty map": rec(mm()),
        "map in map empty": rec(m(a=mm())),
        "map with struct array schema": rec(
            st(m=m(k="v"), a=li(i32(1))),
            struct(
                ("m", {"type": "map", "keys": S, "values": S}),
                ("a", {"type": "array", "items": I32}),
            ),
        ),
        "logical": rec(masked, masked_schema),
        "logical map": rec(m(ts=date(MS), n=m(d=dec("1.5")))),
        "optional with default": rec(
            st(o=st(x=None)),
            struct(
                ("o", opt(struct(("x", {"type": "int32", "optional": True, "default": i32(9)}))))
            ),
        ),
        "defaulted inner": rec(
            st(o=None), struct(("o", {"type": "struct", "optional": True, "fields": [["x", I32]]}))
        ),
    }
    over("Flatten", [{}, {"delimiter": "_"}, {"delimiter": ""}], flat)

    values: list[tuple[str, Node, Any]] = [
        ("timestamp", TS, date(MS)),
        ("date", D, date(86400000 * 19000)),
        ("time", T, date(3661001)),
        ("string", S, "2023-11-14 22:13:20"),
        ("bad string", S, "gestern"),
        ("unix", I64, i64(MS)),
        ("null", opt(TS), None),
        ("null string", OS, None),
        ("int32", I32, i32(5)),
        ("before the epoch", TS, date(-1)),
        ("before unix", I64, i64(-1500)),
        ("short string", S, "2023-11-14"),
        ("string with more", S, "2023-11-14 22:13:20 and more"),
        ("old string", S, "1583-01-02 03:04:05"),
        ("lenient string", S, "2023-13-40 25:61:61"),
        ("timestamp with default", {**TS, "default": date(0)}, date(MS)),
    ]
    conversions = [{"target.type": t} for t in ("unix", "Date", "Time", "Timestamp")]
    conversions += [
        {"target.type": t, "format": "yyyy-MM-dd HH:mm:ss"}
        for t in ("string", "unix", "Date", "Time", "Timestamp")
    ]
    conversions += [
        {"target.type": t, "unix.precision": p}
        for t in ("unix", "Timestamp")
        for p in ("seconds", "microseconds", "nanoseconds")
    ]
    for config in conversions:
        text = ", ".join(f"{k}={v}" for k, v in config.items())
        for name, schema, value in values:
            case(f"{name}: {text}", "TimestampConverter", config, rec(value, schema))
            case(f"{name} without schema: {text}", "TimestampConverter", config, rec(value))
    for config in [
        {"target.type": "string"},
        {"target.type": "nonsense"},
        {},
        {"target.type": "unix", "unix.precision": "days"},
        {"target.type": "string", "format": "bb"},
        {"target.type": "timestamp"},
        {"target.type": "Timestamp", "format": "bb"},
    ]:
        case(f"config {config}", "TimestampConverter", config, rec(date(MS), TS))
    formats = [
        "yyyyMMdd",
        "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'",
        "yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
        "yyyy-MM-dd HH:mm:ss z",
        "yyyy-MM-dd HH:mm:ss Z",
        "EEE, d MMM yyyy HH:mm:ss",
        "EEEE MMMM dd",
        "hh:mm a",
        "yy/M/d H:m:s",
        "D w W F E u",
        "G yyyy",
        "k K",
        "''yyyy''",
        "yyyy 'of' MM",
        "S",
        "SSSSSS",
        "X XX XXX",
        "YYYY-'W'ww",
        "MMMMM",
        "zzzz",
        "yyyyy",
        "y",
        "EE",
        "MMM",
        "L LLL LLLL",
        "aa",
        "HHH",
        "dd.MM.yyyy",
    ]
    stamps = [
        MS,
        0,
        -1,
        1709251199999,
        951782400000,
        1735689599001,
        -62135596800000,
        253402300799999,
        1672531200000,
        1699999999999,
        -12219292800000,
    ]
    for pattern in formats:
        for ms in stamps[: 10 if "W" in pattern else 11]:
            case(
                f"format {pattern} of {ms}",
                "TimestampConverter",
                {"target.type": "string", "format": pattern},
                rec(date(ms), TS),
            )
    parses = [
        ("yyyyMMdd", "20240229"),
        ("yyyyMMdd", "20230229"),
        ("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "2023-11-14T22:13:20.123Z"),
        ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2023-11-14T22:13:20.123+02:00"),
        ("yyyy-MM-dd'T'HH:mm:ssX", "2023-11-14T22:13:20Z"),
        ("yyyy-MM-dd'T'HH:mm:ssX", "2023-11-14T22:13:20-08"),
        ("yyyy-MM-dd HH:mm:ss Z", "2023-11-14 22:13:20 -0530"),
        ("yyyy-MM-dd HH:mm:ss z", "2023-11-14 22:13:20 UTC"),
        ("yyyy-MM-dd HH:mm:ss z", "2023-11-14 22:13:20 PST"),
        ("yyyy-MM-dd HH:mm:ss z", "2023-11-14 22:13:20 GMT+01:00"),
        ("EEE, d MMM yyyy HH:mm:ss", "Tue, 14 Nov 2023 22:13:20"),
        ("d MMMM yyyy", "3 january 2024"),
        ("hh:mm a", "03:04 PM"),
        ("hh:mm a", "12:04 AM"),
        ("yy/M/d H:m:s", "23/1/2 3:4:5"),
        ("yy/M/d", "99/1/2"),
        ("yy/M/d", "2023/1/2"),
        ("yyyy", "23"),
        ("HH:mm", "25:00"),
        ("yyyy-MM-dd", "2023-1-5"),
        ("yyyy-MM-dd", " 2023-01-05"),
        ("yyyy-MM-dd", "2023-01-05x"),
        ("yyyy-MM-dd", "2023-00-05"),
        ("yyyy-MM-dd HH:mm:ss.S", "2023-01-05 00:00:00.5"),
        ("yyyy-MM-dd HH:mm:ss.SSS", "2023-01-05 00:00:00.123456"),
        ("dd.MM.yyyy", "31.12.2023"),
        ("k:mm", "24:00"),
        ("K:mm a", "11:59 pm"),
        ("G yyyy", "BC 0044"),
        ("yyyy D", "2024 60"),
        ("'on' yyyy", "on 2024"),
        ("yyyy MM", "2024 -1"),
        ("yyyy-MM-dd", ""),
        ("MMM", "jan"),
        ("yyyyMMddHHmmssSSS", "20231114221320123"),
        ("YYYY-'W'ww-u", "2024-W05-3"),
        ("yyyy-MM-dd'T'HH:mm:ss.SSSZ", "2023-11-14T22:13:20.123+0200"),
        ("yyyy-MM-dd'T'HH:mm:ss.SSSZ", "2023-11-14T22:13:20.123+02:00"),
        ("yyyy-MM-dd'T'HH:mm:ss.SSSXX", "2023-11-14T22:13:20.123+0200"),
    ]
    for pattern, text in parses:
        case(
            f"parse {text!r} by {pattern}",
            "TimestampConverter",
            {"target.type": "Timestamp", "format": pattern},
            rec(text, S),
        )
    stamped = struct(("id", I64), ("at", TS), ("text", OS), name="stamped", doc="d")
    for config in [
        {"field": "at", "target.type": "unix"},
        {"field": "at", "target.type": "string", "format": "yyyy"},
        {"field": "missing", "target.type": "unix"},
        {"field": "id", "target.type": "Timestamp"},
        {"field": "text", "target.type": "Date", "format": "yyyy-MM-dd"},
        {"field": "at", "target.type": "Date"},
        {"field": "at", "target.type": "Time"},
    ]:
        text = ", ".join(f"{k}={v}" for k, v in config.items())
        for name, record in {
            "struct": rec(st(id=i64(MS), at=date(MS), text="2023-11-14"), stamped),
            "null text": rec(st(id=i64(1), at=date(MS), text=None), stamped),
            "map": rec(m(id=i64(MS), at=date(MS), text="2023-11-14")),
            "map with null": rec(m(id=i64(1), at=None, text=None)),
            "null": rec(None),
            "not a map": rec("x"),
        }.items():
            case(f"{name}: {text}", "TimestampConverter", config, record)
    case("key", "TimestampConverter", {"target.type": "unix"}, on_key(rec(date(MS), TS)), "$Key")
    case(
        "default of a field",
        "TimestampConverter",
        {"field": "at", "target.type": "unix"},
        rec(st(at=None), struct(("at", {**TS, "optional": True, "default": date(5)}))),
    )
    case(
        "default of a field kept",
        "TimestampConverter",
        {"field": "at", "target.type": "unix", "replace.null.with.default": "false"},
        rec(st(at=None), struct(("at", {**TS, "optional": True, "default": date(5)}))),
    )

    for regex, replacement, topic in [
        ("(.*)-(.*)", "$2_$1", "a-b"),
        ("(.*)", "pre-$1", "orders"),
        ("orders", "x", "orders"),
        ("order", "x", "orders"),
        ("(?<n>.*)s", "${n}z", "orders"),
        ("(a)(b)?", "$1$2", "a"),
        ("orders", "$", "orders"),
        ("orders", "$1", "orders"),
        ("orders", "\\$1", "orders"),
        ("(", "x", "orders"),
        ("(o)rders", "$11", "orders"),
        ("o(.*)", "\\\\$1", "orders"),
        ("(?i)ORDERS", "x", "orders"),
        ("[a-z&&[^x]]+", "y", "orders"),
        ("\\p{Alpha}+", "y", "orders"),
        ("\\Qa.b\\E", "q", "a.b"),
        ("a++b", "q", "aaab"),
        ("(?:x|orders)", "q", "orders"),
        (".*+", "q", "orders"),
        ("\\w+\\Z", "q", "orders"),
        ("\\h*orders", "q", "orders"),
        ("\\p{Lu}+", "q", "ABC"),
        ("\\p{IsAlphabetic}+", "q", "öre"),
        ("\\w+", "q", "öre"),
        ("(?<a1>o)(.*)", "${a1}-$2", "orders"),
        ("${x}", "q", "orders"),
        ("(?<n>.*)s", "${m}z", "orders"),
        ("", "x", "orders"),
        ("(.*)s", "$1\\", "orders"),
        ("\\z", "q", "orders"),
        ("(?<n>o)\\k<n>.*", "q", "oops"),
        ("\\p{Punct}+", "q", "..."),
        ("\\p{javaLowerCase}+", "q", "orders"),
        ("[\\p{L}-]+", "q", "a-b"),
        ("\\x41", "q", "A"),
        ("\\R", "q", "A"),
        ("[[a-c][x-z]]+", "q", "axz"),
    ]:
        case(
            f"{regex} → {replacement} on {topic}",
            "RegexRouter",
            {"regex": regex, "replacement": replacement},
            rec("v", S, topic=topic),
            "",
        )
    case("no regex", "RegexRouter", {"replacement": "x"}, rec("v", S), "")
    case("no replacement", "RegexRouter", {"regex": "x"}, rec("v", S), "")

    for config in [
        {},
        {"topic.format": "${topic}_${timestamp}", "timestamp.format": "yyyy-MM"},
        {"topic.format": "x", "timestamp.format": "yyyy"},
        {"topic.format": "${topic}-${topic}-${timestamp}", "timestamp.format": "HH"},
        {"topic.format": ""},
        {"timestamp.format": "bad"},
        {"topic.format": "${other}"},
    ]:
        for name, record in {
            "sink": rec("v", S),
            "no time": rec("v", S, timestamp=None),
            "source": rec("v", S, kind="source"),
            "dollar": rec("v", S, topic="a$1b"),
            "zero": rec("v", S, timestamp=0),
            "before": rec("v", S, timestamp=-1),
        }.items():
            case(f"{name}: {config}", "TimestampRouter", config, record, "")

    for config in [
        {"fields": "id"},
        {"fields": "id,name"},
        {"fields": "missing"},
        {"fields": ""},
        {},
        {"fields": "address"},
        {"fields": "a,n"},
        {"fields": "a", "replace.null.with.default": "false"},
        {"fields": "count"},
        {"fields": "nothing"},
    ]:
        for name, record in common.items():
            case(f"{name}: {config}", "ValueToKey", config, record, "")

    over(
        "HoistField",
        [{"field": "magic"}, {}, {"field": ""}],
        {**common, "int": rec(i32(4), I32), "optional null": rec(None, OS)},
    )
    over(
        "SetSchemaMetadata",
        [
            {"schema.name": "n"},
            {"schema.version": "3"},
            {"schema.name": "n", "schema.version": "3"},
            {},
            {"schema.version": "x"},
        ],
        {
            **common,
            "int": rec(i32(4), I32),
            "array": rec(
                li(i32(1)),
                {
                    "type": "array",
                    "items": I32,
                    "name": "old",
                    "doc": "d",
                    "parameters": {"a": "b"},
                },
            ),
            "map": rec(m(a="b"), {"type": "map", "keys": S, "values": S}),
            "defaulted": rec(i32(4), {"type": "int32", "default": i32(3)}),
        },
    )

    some_headers = (("h", S, "one"), ("n", I32, i32(5)), ("h", None, "two"), ("m", OS, None))
    for header, literal in [
        ("h", "x"),
        ("new", "5"),
        ("new", "true"),
        ("new", "1.5"),
        ("new", "300"),
        ("new", "70000"),
        ("new", "5000000000"),
        ("new", "[1,2]"),
        ("new", '[1,"a"]'),
        ("new", '{"a":1}'),
        ("new", "null"),
        ("new", ""),
        ("new", "2023-11-14"),
        ("new", "2023-11-14T22:13:20.123Z"),
        ("new", "22:13:20.123Z"),
        ("new", '"quoted"'),
        ("new", "99999999999999999999"),
        ("new", "text, more"),
        ("new", "[]"),
        ("new", "{}"),
        ("new", "-1"),
        ("new", "FALSE"),
        ("new", "1e3"),
        ("new", "NaN"),
        ("new", " x "),
        ("new", "1.23456789012345678901"),
        ("new", "0x1f"),
        ("new", "[1.5,2]"),
        ("new", "[true]"),
        ("new", '{"a":"b","c":"d"}'),
        ("new", "[1"),
        ("new", "3.4E39"),
        ("new", "100000"),
        ("new", "127"),
        ("new", "128"),
        ("new", "32768"),
        ("new", "2147483648"),
        ("new", "1."),
        ("new", ".5"),
        ("new", "+5"),
        ("new", "007"),
    ]:
        case(
            f"{header}={literal}",
            "InsertHeader",
            {"header": header, "value.literal": literal},
            rec("v", S, headers=some_headers),
            "",
        )
    case("no header", "InsertHeader", {"value.literal": "x"}, rec("v", S), "")
    case("no literal", "InsertHeader", {"header": "x"}, rec("v", S), "")
    for names in ["h", "n,m", "missing", "", " h , n "]:
        case(
            f"drop {names}",
            "DropHeaders",
            {"headers": names},
            rec("v", S, headers=some_headers),
            "",
        )
    case("no names", "DropHeaders", {}, rec("v", S, headers=some_headers), "")
    with_headers = {k: {**v, "headers": [list(h) for h in some_headers]} for k, v in common.items()}
    over(
        "HeaderFrom",
        [
            {"fields": "id,name", "headers": "hid,h", "operation": "move"},
            {"fields": "id,name", "headers": "hid,h", "operation": "copy"},
            {"fields": "id", "headers": "a,b", "operation": "move"},
            {"fields": "missing", "headers": "a", "operation": "move"},
            {"fields": "missing", "headers": "a", "operation": "copy"},
            {"fields": "address", "headers": "a", "operation": "move"},
            {"fields": "a,n", "headers": "a,n", "operation": "copy"},
            {
                "fields": "a,n",
                "headers": "a,n",
                "operation": "move",
                "replace.null.with.default": "false",
            },
            {"fields": "id", "headers": "a", "operation": "MOVE"},
            {"fields": "id", "headers": "a", "operation": "link"},
            {"fields": "id", "headers": "a"},
            {"fields": "", "headers": "a", "operation": "copy"},
            {"fields": "nothing", "headers": "a", "operation": "copy"},
            {"fields": "id,id", "headers": "a,b", "operation": "copy"},
        ],
        with_headers,
    )
    for name, record in common.items():
        case(name, "Filter", {}, record, "")

    for pattern, topic in [
        ("orders", "orders"),
        ("order", "orders"),
        ("or.*", "orders"),
        ("ORDERS", "orders"),
        ("(?i)ORDERS", "orders"),
        ("[", "x"),
        ("", "x"),
        ("a|orders", "orders"),
        ("\\w++", "orders"),
        ("^ord", "orders"),
    ]:
        case(
            f"{pattern} on {topic}",
            "predicates.TopicNameMatches",
            {"pattern": pattern},
            rec("v", S, topic=topic),
            "",
        )
    case("no pattern", "predicates.TopicNameMatches", {}, rec("v", S), "")
    for name in ["h", "H", "m", "missing", ""]:
        case(
            f"name {name}",
            "predicates.HasHeaderKey",
            {"name": name},
            rec("v", S, headers=some_headers),
            "",
        )
    case("no headers", "predicates.HasHeaderKey", {"name": "h"}, rec("v", S), "")
    case("no name", "predicates.HasHeaderKey", {}, rec("v", S), "")
    for name, record in common.items():
        case(name, "predicates.RecordIsTombstone", {}, record, "")


def main(target: Path) -> None:
    """Write the inputs, a file for each transform and predicate."""
    build()
    target.mkdir(parents=True, exist_ok=True)
    for name, cases in FILES.items():
        (target / f"{name}.json").write_text(json.dumps(cases, ensure_ascii=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
