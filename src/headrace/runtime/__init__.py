"""Headrace: runtime."""
