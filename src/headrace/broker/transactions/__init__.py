"""Transactions: messages that wait for their producer's word, and are then delivered or not."""
