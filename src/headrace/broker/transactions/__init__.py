"""Transactions: messages that wait for their producer's word, and are then delivered or not."""

from headrace.broker.transactions.service import Transactions

__all__ = ["Transactions"]
