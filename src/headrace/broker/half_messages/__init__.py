"""Half messages: they wait for their producer's word, and are then delivered or not."""

from headrace.broker.half_messages.service import HalfMessages

__all__ = ["HalfMessages"]
