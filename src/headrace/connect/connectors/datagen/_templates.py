"""Rows that people know from examples."""

from __future__ import annotations

__all__ = ["TEMPLATES"]

TEMPLATES = {
    "users": """{
        "userid": {"type": "text", "pattern": "user-####"},
        "registertime": {"type": "time", "start": "2026-01-01T00:00:00Z", "step_ms": 60000},
        "regionid": {"type": "choice", "values": ["north", "east", "south", "west"]},
        "gender": {"type": "choice", "values": ["female", "male", "other"], "weights": [49, 49, 2]}
    }""",
    "pageviews": """{
        "viewtime": {"type": "time", "start": "2026-01-01T00:00:00Z", "step_ms": 100},
        "userid": {"type": "text", "pattern": "user-####"},
        "pageid": {"type": "text", "pattern": "page-##"}
    }""",
    "orders": """{
        "orderid": "sequence",
        "ordertime": {"type": "time", "start": "2026-01-01T00:00:00Z", "step_ms": 1000},
        "itemid": {"type": "text", "pattern": "item-###"},
        "orderunits": {"type": "int", "min": 1, "max": 10},
        "price": {"type": "float", "min": 0.5, "max": 500, "digits": 2},
        "zipcode": {"type": "text", "pattern": "#####"}
    }""",
    "stock-trades": """{
        "side": {"type": "choice", "values": ["BUY", "SELL"]},
        "symbol": {"type": "choice", "values": ["HDR", "RVR", "MILL", "WHL", "DAM"]},
        "quantity": {"type": "int", "min": 1, "max": 5000},
        "price": {"type": "float", "min": 1, "max": 1000, "digits": 2},
        "account": {"type": "text", "pattern": "??-####"}
    }""",
    "sensors": """{
        "sensor": {"type": "text", "pattern": "sensor-##"},
        "time": {"type": "time", "start": "2026-01-01T00:00:00Z", "step_ms": 10},
        "celsius": {"type": "float", "min": -20, "max": 45, "digits": 1, "null": 0.01},
        "battery": {"type": "float", "min": 2.7, "max": 4.2, "digits": 2}
    }""",
}
"""Names to fields."""
