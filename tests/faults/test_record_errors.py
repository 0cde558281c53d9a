"""Records that fail behind a shuffle: the original message is fetched from the broker."""

from __future__ import annotations

import json
from typing import Any

from headrace import serdes
from headrace.client import Message, Producer, PullConsumer
from headrace.spark.statistics import Meter
from headrace.streams import StreamBuilder
from tests.faults.local_driver import LocalDriver
from tests.spark.pipelines import Rig


def joined(left: Any, right: Any) -> dict[str, Any]:
    return {"k": left["k"], "n": left["n"] + 10 // right["n"]}


def test_dead_letter_of_a_later_stage_is_the_message_that_the_broker_holds(rig: Rig) -> None:
    orders, totals, dead = rig.topic(queues=1), rig.topic(), rig.topic(queues=1)
    builder = StreamBuilder(f"dead-{orders}")
    grouped = builder.source(orders, serdes.json).key_by(lambda value: value["k"])
    total = grouped.reduce(joined, name="op", serde=serdes.json, on_error=f"topic:{dead}")
    total.to_stream().sink(totals, serdes.json)
    producer = Producer(rig.client)
    for number in (1, 5, 0, 2):
        body = json.dumps({"k": "a", "n": number}).encode()
        producer.send(Message(topic=orders, body=body, keys="mine", properties={"h": str(number)}))
    meter = Meter()
    with LocalDriver(rig.namesrv, rig.folder, job=builder.build()) as driver:
        end = driver.process()
        driver.commit(end)
        meter.committed(end.record)
    assert [json.loads(body)["n"] for _, body in rig.read(totals)] == [1 + 2 + 5]
    (queue,) = rig.client.queues(dead)
    (found,) = [
        m for block in PullConsumer(rig.client).blocks(queue, 0, 1) for m in block.messages()
    ]
    assert (json.loads(found.body)["n"], found.keys, found.properties["h"]) == (0, "mine", "0")
    told = {name: found.properties[f"HEADRACE_DEAD_{name}"] for name in ("TOPIC", "OFFSET", "LINE")}
    assert (told["TOPIC"], told["OFFSET"]) == (orders, "2")
    assert '10 // right["n"]' in told["LINE"]
    shown = meter.statistics(end.record, None, (0, 0), running=True, batches={}).operators
    assert (shown["op"].records_in, shown["op"].records_out, shown["op"].dropped) == (4, 1, 1)
    assert (shown["op"].state_keys, shown[f"sink-{totals}"].records_out) == (1, 1)
