"""Transactions on a stock RocketMQ: stage in a journal topic, commit by the order of the log."""

from __future__ import annotations

__all__: list[str] = []
