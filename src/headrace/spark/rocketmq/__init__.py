"""RocketMQ topics as data frames, for Spark programs of the user's own.

``register(spark)`` adds the format ``rocketmq`` to a session, for batch and streaming reads and
writes.
"""

from __future__ import annotations

from headrace.spark.rocketmq.source import RocketMQSource, register

__all__ = ["RocketMQSource", "register"]
