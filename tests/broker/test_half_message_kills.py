"""Half messages under kills at random times: each ends once, as its producer said."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.broker import BrokerProcess, spawn_broker
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.messages import decode_messages
from headrace.protocol.properties import decode_offset_id
from tests.broker.wire import Wire

SEED = int(os.environ.get("FAULTS_SEED", "7"))
COMMIT, ROLLBACK = 8, 12


@dataclass
class Said:
    """What producers know: half messages that were confirmed, and what they want of each."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    halves: dict[bytes, tuple[Command, int]] = field(default_factory=dict)
    confirmed: set[bytes] = field(default_factory=set)


def produce(broker: list[BrokerProcess], said: Said, name: int, stop: threading.Event) -> None:
    """Send half messages and end them, again after every lost connection, until told to stop."""
    choice = random.Random(f"{SEED}-{name}")
    number = 0
    while not stop.is_set():
        try:
            with Wire(broker[-1].address) as wire:
                while not stop.is_set():
                    body = b"%d-%d" % (name, number)
                    number += 1
                    half = prepare(wire, body)
                    how = choice.choice((COMMIT, COMMIT, ROLLBACK))
                    with said.lock:
                        said.halves[body] = (half, how)
                    # Some are left open for later; some are said twice.
                    for _ in range(choice.choice((0, 1, 1, 2))):
                        assert end(wire, half, how) == 0
                        with said.lock:
                            said.confirmed.add(body)
        except (OSError, ConnectionError):
            time.sleep(0.01)


def prepare(wire: Wire, body: bytes) -> Command:
    properties = f"UNIQ_KEY\1{body.decode()}\2TRAN_MSG\1true\2PGROUP\1p\2"
    sent = wire.put("t", body, 0, i=properties, f=4)
    assert sent.code == 0, sent.remark
    return sent


def end(wire: Wire, half: Command, how: int) -> int:
    return wire.ask(
        RequestCode.END_TRANSACTION,
        producerGroup="p",
        tranStateTableOffset=half.ext["queueOffset"],
        commitLogOffset=decode_offset_id(half.ext["msgId"])[1],
        commitOrRollback=how,
        fromTransactionCheck="true",
        msgId=half.ext["transactionId"],
    ).code


def bodies(wire: Wire) -> list[bytes]:
    found: list[bytes] = []
    while (answer := wire.pull("t", 0, len(found), maxMsgNums=10_000)).code == 0:
        found += [message.body for message in decode_messages(answer.payload)]
    return found


@pytest.mark.parametrize("kills", [2, pytest.param(25, marks=pytest.mark.soak)])
def test_each_half_message_ends_once_whenever_the_broker_is_killed(
    tmp_path: Path, kills: int
) -> None:
    chance, said, stop = random.Random(SEED), Said(), threading.Event()
    brokers = [spawn_broker(tmp_path)]
    with Wire(brokers[0].address) as wire:
        wire.create("t", queues=1)
    workers = [
        threading.Thread(target=produce, args=(brokers, said, name, stop)) for name in range(4)
    ]
    for worker in workers:
        worker.start()
    try:
        for kill in range(1, kills + 1):
            while len(said.halves) <= 20 * kill:
                assert all(worker.is_alive() for worker in workers)
                time.sleep(0.01)
            time.sleep(chance.uniform(0.1, 0.8))
            brokers[-1].kill()
            brokers.append(spawn_broker(tmp_path))
        time.sleep(0.2)
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    with brokers[-1], Wire(brokers[-1].address) as wire:
        before = Counter(bodies(wire))
        wanted = {body for body, (_, how) in said.halves.items() if how == COMMIT}
        assert max(before.values()) == 1
        assert said.confirmed & wanted <= set(before) <= wanted
        for half, how in said.halves.values():
            assert end(wire, half, how) == 0
        assert Counter(bodies(wire)) == Counter(wanted)
