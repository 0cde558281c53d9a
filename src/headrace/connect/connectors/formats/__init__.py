"""Whole files of rows: what connectors to folders and to object stores share."""

from __future__ import annotations

__all__: list[str] = []
