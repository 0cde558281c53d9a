"""Headrace: spark."""
