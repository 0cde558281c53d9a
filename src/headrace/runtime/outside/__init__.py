"""Records from outside systems and messages to them: columns in, columns out, positions kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.runtime.outside.delivery import DeliveryProcessor
from headrace.runtime.outside.feed import FeedProcessor, FeedWriter
from headrace.runtime.outside.messages import MessageReader
from headrace.topology.operators import outside

if TYPE_CHECKING:
    from headrace.runtime.processors import Processor
    from headrace.topology.operators.core import Operator

__all__ = ["OUTSIDE", "DeliveryProcessor", "FeedProcessor", "FeedWriter", "MessageReader"]

#: Operator to processor.
OUTSIDE: Mapping[type[Operator], type[Processor[Any]]] = {
    outside.Delivery: DeliveryProcessor,
    outside.Feed: FeedProcessor,
}
