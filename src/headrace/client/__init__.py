"""Headrace: client."""
