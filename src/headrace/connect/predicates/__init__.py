"""Predicates: decide for which records a transform runs."""

from __future__ import annotations

from headrace.connect.predicates.base import Predicate

__all__ = ["Predicate"]
