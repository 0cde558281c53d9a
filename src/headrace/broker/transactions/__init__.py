"""Transactions: messages that wait for their producer's word, and are then delivered or not."""

from headrace.broker.transactions.book import Half, Outcome, Progress, Standing, TransactionBook
from headrace.broker.transactions.service import Ending, Transactions

__all__ = [
    "Ending",
    "Half",
    "Outcome",
    "Progress",
    "Standing",
    "TransactionBook",
    "Transactions",
]
