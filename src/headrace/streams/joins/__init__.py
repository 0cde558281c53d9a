"""Joins in the front door."""

__all__: list[str] = []
