"""Joins: what keeps two sides and lets them meet."""

from __future__ import annotations

from headrace.runtime.joins.registry import JOINS

__all__ = ["JOINS"]
