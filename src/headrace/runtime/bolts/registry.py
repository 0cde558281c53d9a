"""Which processor runs which operator of spouts and bolts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.runtime.bolts.bolts import BoltProcessor, StatefulBoltProcessor
from headrace.runtime.bolts.key_values import KeyValueProcessor
from headrace.runtime.bolts.spouts import SpoutProcessor, SubscriptionProcessor, TuplesProcessor
from headrace.topology.operators.bolts import (
    Bolt,
    KeyValueBoltNode,
    Spout,
    StatefulBoltNode,
    Subscription,
    Tuples,
)

if TYPE_CHECKING:
    from headrace.runtime.processors import Processor
    from headrace.topology.operators.core import Operator

__all__ = ["BOLTS"]

#: Operator to processor.
BOLTS: Mapping[type[Operator], type[Processor[Any]]] = {
    Bolt: BoltProcessor,
    KeyValueBoltNode: KeyValueProcessor,
    Spout: SpoutProcessor,
    StatefulBoltNode: StatefulBoltProcessor,
    Subscription: SubscriptionProcessor,
    Tuples: TuplesProcessor,
}
