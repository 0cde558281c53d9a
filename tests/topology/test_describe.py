from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from headrace import Accumulator, Keyed, StreamBuilder, Topology, serdes


class Longest(Accumulator[str, str]):
    def __init__(self) -> None:
        self.word = ""

    def add(self, value: str) -> None:
        self.word = max(self.word, value, key=len)

    def result(self) -> str:
        return self.word


def read_pair(body: bytes) -> Keyed[str, str]:
    return Keyed("key", body.decode())


def shop() -> Topology:
    builder = StreamBuilder("shop")
    words = builder.source("words", serdes.with_key(serdes.string), on_error="topic:bad-words")
    words.sink("copies", lambda value: value.encode())
    counts = words.key_by(len).count(name="lengths", emit="each")
    counts.to_stream().key_by(lambda count: count % 2).sum()
    pairs = builder.source("pairs", read_pair, on_error="skip")
    pairs.group_by_key().aggregate(Longest).to_stream().sink("copies", serdes.json)
    return builder.build()


DESCRIPTION = """\
topology shop
  stage 0
    source-words       reads words, deserializer with_key(string), on_error topic:bad-words
    sink-copies        <- source-words, writes copies, serializer <lambda>
    key_by-words       <- source-words
    source-pairs       reads pairs, deserializer read_pair, on_error skip
  stage 1
    lengths            <= key_by-words (by key), emit each, state int
    to_stream-words    <- lengths
    key_by-words-2     <- to_stream-words
    aggregate-pairs    <= source-pairs (by key), emit update, state plain
    to_stream-pairs    <- aggregate-pairs
    sink-copies-2      <- to_stream-pairs, writes copies, serializer json
  stage 2
    sum-words          <= key_by-words-2 (by key), emit update, state int
  topics
    words                            read by source-words
    bad-words                        dead letters of source-words
    pairs                            read by source-pairs
    copies                           written by sink-copies, written by sink-copies-2
    shop-lengths-stateTopic          state of lengths
    shop-aggregate-pairs-stateTopic  state of aggregate-pairs
    shop-sum-words-stateTopic        state of sum-words
    shop-commitTopic                 commits of the job
"""

DOT = """\
digraph "job" {
  rankdir=LR;
  node [shape=box];
  subgraph cluster_0 {
    label="stage 0";
    "source-words";
    "key_by-words";
  }
  subgraph cluster_1 {
    label="stage 1";
    "count-words";
    "to_stream-words";
    "sink-counts";
  }
  "topic words" [shape=cylinder, label="words"];
  "topic job-count-words-stateTopic" [shape=cylinder, label="job-count-words-stateTopic"];
  "topic counts" [shape=cylinder, label="counts"];
  "topic words" -> "source-words";
  "count-words" -> "topic job-count-words-stateTopic" [style=dotted, dir=both];
  "sink-counts" -> "topic counts";
  "source-words" -> "key_by-words";
  "key_by-words" -> "count-words" [style=bold, label="by key"];
  "count-words" -> "to_stream-words";
  "to_stream-words" -> "sink-counts";
}
"""


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_description_shows_stages_operators_and_topics() -> None:
    assert squeezed(shop().describe()) == squeezed(DESCRIPTION)


def test_columns_of_the_description_line_up() -> None:
    rows = [line for line in shop().describe().splitlines() if "<- " in line or "<= " in line]
    assert len({max(line.find("<-"), line.find("<=")) for line in rows}) == 1


def test_description_is_the_same_in_every_process() -> None:
    command = "from tests.topology.test_describe import shop; print(shop().describe(), end='')"
    texts = {
        subprocess.run(
            [sys.executable, "-c", command],
            env=_environment(PYTHONHASHSEED=seed),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert texts == {shop().describe()}


def _environment(**more: str) -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **more}


def test_dot_shows_stages_as_frames_and_shuffles_bold() -> None:
    builder = StreamBuilder("job")
    words = builder.source("words", serdes.string).key_by(len)
    words.count().to_stream().sink("counts", serdes.json)
    assert builder.build().to_dot() == DOT
