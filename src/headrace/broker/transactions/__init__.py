"""Transactions: messages that wait for their producer's word, and are then delivered or not."""

from headrace.broker.transactions.book import (
    Half,
    HalfMessageState,
    Outcome,
    ReadProgress,
    TransactionBook,
)
from headrace.broker.transactions.service import HalfMessageEnd, Transactions

__all__ = [
    "Half",
    "HalfMessageEnd",
    "HalfMessageState",
    "Outcome",
    "ReadProgress",
    "TransactionBook",
    "Transactions",
]
