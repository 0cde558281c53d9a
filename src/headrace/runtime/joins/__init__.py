"""Joins: what keeps two sides and lets them meet."""

from __future__ import annotations

from headrace.runtime.joins.lookups import JOINS

__all__ = ["JOINS"]
