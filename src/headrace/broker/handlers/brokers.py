"""Requests of tools about the broker itself."""

from __future__ import annotations

import dataclasses
import shutil
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from headrace.protocol.codes import RequestCode
from headrace.protocol.routes import dumps

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.rates import Rate
    from headrace.broker.requests import Request
    from headrace.protocol.frames import Command
    from headrace.store import StoreStatistics

__all__ = ["HANDLERS"]

#: RocketMQ's tools show the version of the protocol that they speak with us.
_VERSION_NUMBER = "479"
_VERSION = "V5_3_3"


def get_runtime_info(core: Core, request: Request) -> Command:
    """Tell what the broker holds and how full its disk is."""
    store = core.store.statistics()
    disk = shutil.disk_usage(core.folder)
    table = {
        "brokerVersion": _VERSION_NUMBER,
        "brokerVersionDesc": _VERSION,
        "brokerActive": "true",
        "bootTimestamp": str(core.started),
        "runtime": _age(core),
        "putTps": _text(core.put_rate),
        "getTransferredTps": _text(core.get_rate),
        "earliestMessageTimeStamp": str(core.earliest()),
        "commitLogMinOffset": str(store.begin),
        "commitLogMaxOffset": str(store.end),
        "commitLogDiskRatio": f"{disk.used / disk.total:.4f}",
        "msgPutTotalTodayNow": str(store.appended_records),
        "sendThreadPoolQueueSize": "0",
        "pullThreadPoolQueueSize": "0",
        "headraceQueues": str(store.queues),
        "headraceFreeBytes": str(disk.free),
    }
    table |= _compaction(store)
    table |= {f"headraceRefused.{name}": str(n) for name, n in core.refusals.counts.items()}
    if store.failure is not None:
        table["headraceFailure"] = store.failure
    return request.reply(body=dumps({"table": table}))


def _compaction(store: StoreStatistics) -> dict[str, str]:
    """Tell how topics that keep the newest message of each key are."""
    done, reput = store.compaction, store.reput
    written = f"{done.bytes_written / reput.bytes:.2f}" if reput.bytes else "0"
    return {
        "headraceCompactionQueues": str(done.queues),
        "headraceCompactionCleanBytes": str(done.clean_bytes),
        "headraceCompactionDirtyBytes": str(done.dirty_bytes),
        "headraceCompactionRuns": str(done.runs),
        "headraceCompactionLastRun": str(done.last_run),
        "headraceCompactionFailures": str(done.failures),
        "headraceCompactionAmplification": written,
        "headraceReputLag": str(reput.lag),
        "dispatchBehindBytes": str(reput.lag),
    } | {f"headraceCompactionError.{queue}": error for queue, error in done.errors.items()}


def _text(rate: Rate) -> str:
    return " ".join(f"{number:.2f}" for number in rate.per_second())


def _age(core: Core) -> str:
    seconds = (core.now() - core.started) // 1000
    days, rest = divmod(seconds, 86_400)
    return f"[ {days} days, {rest // 3600} hours, {rest // 60 % 60} minutes, {rest % 60} seconds ]"


def get_broker_config(core: Core, request: Request) -> Command:
    """List the broker's settings, as properties."""
    lines = {
        "brokerName": core.name,
        "brokerClusterName": core.cluster,
        "brokerId": "0",
        "brokerIP1": core.host,
        "listenPort": str(core.port),
        "namesrvAddr": core.address,
        "storePathRootDir": str(core.folder),
        "flushDiskType": f"{core.settings.flush.upper()}_FLUSH",
        "maxMessageSize": str(core.settings.max_message_size),
        "autoCreateTopicEnable": str(core.settings.create_topics).lower(),
        "autoCreateSubscriptionGroup": str(core.settings.create_groups).lower(),
        "messageDelayLevel": core.settings.delay_levels,
        "defaultTopicQueueNums": str(core.settings.default_queues),
        "fileReservedTime": _hours(core.settings.retention),
        "diskMaxUsedSpaceRatio": f"{100 * core.settings.disk_watermark:.0f}",
        "enableCompaction": "true",
        "mappedFileSizeCommitLog": str(core.settings.segment_size),
    }
    for field in dataclasses.fields(core.settings):
        lines.setdefault(f"headrace.{field.name}", str(getattr(core.settings, field.name)))
    text = "".join(f"{key}={value}\n" for key, value in sorted(lines.items()))
    stamp = f'{{"stateVersion":0,"timestamp":{core.started},"counter":0}}'
    return request.reply(ext={"version": stamp}, body=text.encode())


def _hours(duration: timedelta | None) -> str:
    return "2147483647" if duration is None else f"{duration.total_seconds() / 3600:g}"


def get_namesrv_config(core: Core, request: Request) -> Command:
    """List the name server's settings, as properties."""
    started = datetime.fromtimestamp(core.started / 1000, UTC).isoformat()
    lines = {"listenPort": str(core.port), "headrace.started": started, **core.names.properties}
    text = "".join(f"{name}={value}\n" for name, value in lines.items())
    return request.reply(body=text.encode())


HANDLERS = {
    RequestCode.GET_BROKER_RUNTIME_INFO: get_runtime_info,
    RequestCode.GET_BROKER_CONFIG: get_broker_config,
    RequestCode.GET_NAMESRV_CONFIG: get_namesrv_config,
}
