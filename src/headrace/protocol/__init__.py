"""Headrace: protocol."""
