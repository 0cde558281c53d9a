"""RocketMQ topics as data frames, for those who write Spark themselves.

``register(spark)`` makes ``spark.readStream.format("rocketmq")`` and its three relatives work.
"""

from __future__ import annotations

from headrace.spark.rocketmq.source import RocketMQSource, register

__all__ = ["RocketMQSource", "register"]
