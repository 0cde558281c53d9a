"""Transactions: messages that wait for their producer's word, and are then delivered or not."""

from headrace.broker.transactions.book import Half, Outcome, Progress, Standing, TransactionBook

__all__ = ["Half", "Outcome", "Progress", "Standing", "TransactionBook"]
