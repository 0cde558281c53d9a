"""Messages that wait: by level or until a time of their own, and are then delivered once."""

from headrace.broker.delays.delivery import Delivery
from headrace.broker.delays.levels import parse_levels
from headrace.broker.delays.parking import delayed
from headrace.broker.delays.scheduler import Plan, Progress, Scheduler

__all__ = ["Delivery", "Plan", "Progress", "Scheduler", "delayed", "parse_levels"]
