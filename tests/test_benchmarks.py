"""Every benchmark works; what it measures is not looked at here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import (
    closed_windows,
    commits,
    compaction,
    hot_keys,
    large_units,
    modes,
    partitions,
    scale,
    store_life,
)
from benchmarks.against import Comparison
from benchmarks.growth.compacted import write_amplification
from benchmarks.growth.held import held
from benchmarks.measures import Benchmark, Plan, Runner, benchmark, chosen, discover
from benchmarks.sizes import SMALL
from benchmarks.table import results_table
from benchmarks.targets import RATIOS, TARGETS
from headrace import TopologyTestDriver, serdes

ROOT = Path(__file__).parent.parent
LIMIT = 200


def measured(folder: Path, *arguments: str) -> dict[str, float]:
    """Run benchmarks as `make bench` does, small; give what they measured."""
    command = [sys.executable, "-m", "benchmarks", "--small", "--results", str(folder), *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            output, errors = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            # A polite end takes brokers and Spark with it.
            process.terminate()
            output, errors = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
    assert process.returncode == 0, output + errors
    lines = [json.loads(line) for line in output.splitlines()]
    (file,) = folder.iterdir()
    assert [json.loads(line) for line in file.read_text().splitlines()] == lines
    for line in lines:
        assert set(line) == {"measure", "value", "unit", "runs", "load_average"}
        assert line["runs"]
    return {line["measure"]: line["value"] for line in lines}


@pytest.mark.slow
def test_restore_is_measured(tmp_path: Path) -> None:
    assert measured(tmp_path, "restore")["restore"] > 0


@pytest.mark.slow
def test_another_commit_is_measured_beside_this_one() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no git repository")
    command = [sys.executable, "-m", "benchmarks", "--small", "--against", "HEAD", "restore"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert "| `restore` |" in done.stdout, done.stderr
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "worktree", "list"], capture_output=True, text=True, check=True
    )
    assert "/before" not in listed.stdout


@pytest.mark.parametrize(
    ("measure", "unit", "before", "now", "is_worse"),
    [
        ("word_count_1k", "words/s", 100, 94, True),
        ("word_count_1k", "words/s", 100, 96, False),
        ("latency_p50", "s", 0.1, 0.11, True),
        ("latency_p50", "s", 0.1, 0.09, False),
        ("something_new", "bytes", 100, 120, True),
    ],
)
def test_what_is_worse_than_before_is_named(
    measure: str, unit: str, before: float, now: float, *, is_worse: bool
) -> None:
    found = Comparison()
    for side, value in (("before", before), ("now", now)):
        found.add(side, {"measure": measure, "unit": unit, "runs": [value, value * 9, 0]})
    # Of what only one commit has, nothing can be said.
    found.add("now", {"measure": "newer", "unit": "s", "runs": [1]})
    assert found.worse() == [measure] * is_worse
    assert ("(worse)" in found.table()) == is_worse
    assert "newer" not in found.table()


def test_r41_the_modes_are_compared_on_one_topology_and_an_acker_hears_of_every_tuple() -> None:
    lines = ["to be or not to be", "that is the question"] * 10
    words = sum(len(line.split()) for line in lines)
    found = {}
    for acked in (False, True):
        topology = modes.word_count("words", "lines", "counts", acked=acked)
        with TopologyTestDriver(topology) as driver:
            with driver.batch():
                driver.input("lines", serdes.string).pipe(lines)
            found[acked] = driver.output("counts", serdes.json).read_all()
            rows = driver._job.records["acker"]
        assert rows == (len(lines) + words if acked else 0), "one row per tuple"
    assert sorted(map(str, found[True])) == sorted(map(str, found[False]))
    measured_modes = {f"mode_{mode}" for mode in modes._MODES}
    assert measured_modes <= set(TARGETS)
    compared = {(ratio.numerator, ratio.denominator) for ratio in RATIOS}
    assert ("mode_at_least_once", "mode_acker") in compared
    assert ("mode_exactly_once", "mode_at_most_once") in compared


def test_compaction_is_measured() -> None:
    """In this process: it needs no broker."""
    plan = Plan(1, SMALL)
    [rates] = compaction.compaction(plan)
    [memory] = compaction.compaction_memory(plan)
    assert set(rates) | set(memory) <= set(TARGETS)
    assert rates["compaction_bytes"] > 0
    assert memory["compaction_key_bytes"] > 24


def test_the_life_of_a_store_is_measured() -> None:
    """In this process: it needs no broker."""
    plan = Plan(1, SMALL)
    [start] = store_life.start_10gb(plan)
    [recovery] = store_life.recovery_bytes(plan)
    [queues] = store_life.queues_10k(plan)
    assert set(start) | set(recovery) | set(queues) <= set(TARGETS)
    assert recovery["recovery_bytes"] > 0
    assert queues["queues_10k_files"] < 100


@pytest.mark.slow
def test_growth_is_measured(tmp_path: Path) -> None:
    """What needs no broker, in this process."""
    assert all(value > 0 for value in held(tmp_path, 2_000_000).values())
    # Half of a log is dirty when it is compacted: about one byte more for each that was sent.
    assert 0.5 < write_amplification(10_000) < 2.5


@pytest.mark.slow
def test_the_growth_of_state_is_measured() -> None:
    """In this process: it needs no broker."""
    plan = Plan(1, replace(SMALL, closed_windows=600, hot_records=1000))
    [closed] = closed_windows.closed_windows(plan)
    [beside] = closed_windows.open_windows(plan)
    [hot] = hot_keys.hot_keys(plan)
    assert set(closed) | set(beside) | set(hot) <= set(TARGETS)
    assert closed["growth_windows"] == 0
    assert beside["growth_open_step"] > 0
    assert 0 < hot["growth_hot_key"] < 20


def test_commits_of_many_jobs_are_measured() -> None:
    [found] = commits.many_jobs(Plan(1, SMALL))
    assert 0 < found["many_jobs_commits"] < 100_000


def test_appends_beside_a_large_unit_are_measured() -> None:
    [found] = large_units.append_beside_unit(Plan(1, SMALL))
    assert 0 < found["append_beside_unit_p50"] <= found["append_beside_unit"]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(2 * LIMIT)
def test_batches_of_many_partitions_are_measured() -> None:
    [found] = partitions.wide_batches(Plan(1, SMALL))
    assert set(found) <= set(TARGETS)
    assert all(value > 0 for value in found.values())


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(2 * LIMIT)
def test_counting_is_measured_against_its_floor_and_the_clock(tmp_path: Path) -> None:
    # One process: Spark's start takes longer than the work.
    resident = "resident_word_count_1k", "resident_latency_10k_p50"
    values = measured(tmp_path, "word_count_1k", "word_count_floor_1k", "latency_p50", *resident)
    ratio = values["word_count_1k"] / values["word_count_floor_1k"]
    assert values["word_count_1k / word_count_floor_1k"] == pytest.approx(ratio, abs=1e-3)
    assert 0 < values["latency_p50"] <= values["latency_p99"]
    assert values["resident_word_count_1k / word_count_1k"] > 0
    assert 0 < values["resident_latency_10k_p50"] <= values["resident_latency_10k_p99"]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(2 * LIMIT)
def test_operators_of_streams_are_measured(tmp_path: Path) -> None:
    measures = ["map_lambda", "window_hopping", "window_columns", "join_interval", "state_10m"]
    values = measured(tmp_path, *measures)
    assert min(values.values()) > 0
    assert {*measures, "state_10m / state_10k", "state_10m_memory"} == set(values) - {"state_10k"}


@pytest.mark.soak
@pytest.mark.rocketmq
def test_pulling_is_measured_on_both_brokers(tmp_path: Path) -> None:
    assert set(measured(tmp_path, "pull_ours")) == {
        "pull_ours",
        "pull_real",
        "pull_ours / pull_real",
    }


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> list[Benchmark]:
    """No benchmarks but those that a test registers."""
    kept: list[Benchmark] = []
    monkeypatch.setattr("benchmarks.measures._registered", kept)
    return kept


def fixed(name: str, values: list[float], *, peers: bool = False) -> None:
    @benchmark({name: "words/s"}, peers=peers)
    def work(plan: Plan) -> Iterator[Mapping[str, float]]:
        yield from ({name: value} for value in values[: plan.runs])


def test_result_is_the_median_of_the_runs(registry: list[Benchmark], tmp_path: Path) -> None:
    fixed("word_count_1k", [3.0, 1.0, 20.0])
    runner = Runner(Plan(3, SMALL), tmp_path)
    runner.run(registry)
    line = json.loads(runner.path.read_text())
    assert (line["value"], line["runs"]) == (3.0, [3.0, 1.0, 20.0])


def test_failure_of_one_benchmark_does_not_end_the_others(
    registry: list[Benchmark], tmp_path: Path
) -> None:
    @benchmark({"restore": "keys/s"})
    def work(plan: Plan) -> Iterator[Mapping[str, float]]:
        raise RuntimeError("no luck")

    fixed("word_count_1k", [1.0])
    runner = Runner(Plan(1, SMALL), tmp_path)
    runner.run(registry)
    assert runner.failures == {"restore": "no luck"}
    assert json.loads(runner.path.read_text())["measure"] == "word_count_1k"


def test_benchmarks_of_one_name_run_in_turns_and_the_failure_of_one_ends_no_other(
    registry: list[Benchmark], tmp_path: Path
) -> None:
    done: list[str] = []

    def register(name: str, runs: int) -> None:
        @benchmark({name: "rows/s"}, turns="files")
        def work(_: Plan) -> Iterator[Mapping[str, float]]:
            for _run in range(runs):
                done.append(name)
                yield {name: 1.0}
            if runs < 3:
                raise RuntimeError("no luck")

    register("connect_file_sink", 3)
    register("kafka_connect_file_sink", 3)
    register("connect_s3_sink", 1)
    runner = Runner(Plan(3, SMALL), tmp_path)
    runner.run(registry)
    pair = ["connect_file_sink", "kafka_connect_file_sink"]
    assert done == [*pair, "connect_s3_sink", *pair, *pair]
    assert runner.failures == {"connect_s3_sink": "no luck"}
    kept = [json.loads(line)["measure"] for line in runner.path.read_text().splitlines()]
    assert kept == [*pair, " / ".join(pair)]


def test_peers_are_measured_only_when_asked_for_and_with_what_they_compare_to(
    registry: list[Benchmark],
) -> None:
    fixed("rocketmq_streams_1k", [1.0], peers=True)
    fixed("word_count_1k", [1.0])
    fixed("restore", [1.0])

    def names(*, peers: bool) -> list[str]:
        return [name for one in chosen([], peers=peers) for name in one.units]

    assert names(peers=False) == ["word_count_1k", "restore"]
    assert names(peers=True) == ["word_count_1k", "rocketmq_streams_1k"]


def test_unknown_measure_is_refused_with_the_known_ones(registry: list[Benchmark]) -> None:
    fixed("restore", [1.0])
    with pytest.raises(ValueError, match=r"No measure is called speed; there are restore"):
        chosen(["speed"], peers=False)


def test_table_says_what_was_asked_and_what_was_missed(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    line = {"unit": "s", "runs": [0.5, 0.31, 0.6], "load_average": 1.25}
    file.write_text(
        json.dumps({"measure": "latency_p50", "value": 0.5, **line})
        + "\n"
        + json.dumps({"measure": "latency_p99", "value": 0.6, **line})
    )
    rows = results_table([file]).splitlines()[2:]
    assert rows == [
        "| `latency_p50` | below 0.4 s | 0.5 s (missed) | 0.5, 0.31, 0.6 | 1.25 |",
        "| `latency_p99` | below 1 s | 0.6 s | 0.5, 0.31, 0.6 | 1.25 |",
    ]


def test_every_benchmark_has_a_place_among_the_targets() -> None:
    assert {name for one in discover() for name in one.units} <= set(TARGETS)


def test_the_page_on_scale_has_what_the_program_prints() -> None:
    page = (ROOT / "docs" / "explanation" / "scale.md").read_text()
    assert [table for table in scale.pages() if table not in page] == []


def test_the_model_of_scale_stands_on_the_results_that_are_told() -> None:
    page = (ROOT / "docs" / "explanation" / "performance.md").read_text()
    results, _ = page.split("## What is measured")
    found = re.findall(r"^\| `(\w+)` \|[^|]*\| ([\d,.]+) ", results, re.MULTILINE)
    told = {name: float(value.replace(",", "")) for name, value in found}
    narrow, wide, more = told["batch_of_one_8"], told["batch_of_one_1024"], 1024 - 8
    said = [scale.CONSTANTS[name].value for name in ("batch", "partition", "control", "restore")]
    control = told["batch_of_one_1024_bytes"] - told["batch_of_one_8_bytes"]
    partition = 2 * (wide - narrow) / more
    wanted = [narrow - 8 * partition / 2, partition, control / more, told["restore"] / 2]
    assert said == pytest.approx(wanted, rel=0.01)
    measured = {job.name: job.measured for job in scale.JOBS}
    assert measured == {
        name: told[name] / (5 if name.startswith("word_count") else 1) for name in measured
    }


def test_the_model_of_scale_errs_on_neither_side_of_a_measured_batch() -> None:
    for width, seconds in ((8, 0.169), (64, 0.416), (256, 1.32), (1024, 6.6)):
        assert scale.overhead(width, 2) == pytest.approx(seconds, rel=0.4), width
        one_by_one = scale.overhead(width, 2, one_by_one=True)
        assert one_by_one == pytest.approx(scale.overhead(width, 2))
        assert scale.overhead(width, 100) < scale.overhead(width, 100, one_by_one=True)


@pytest.mark.slow
def test_what_the_model_of_scale_needs_is_measured_anew() -> None:
    assert 0 < scale.measure_written(scale.JOBS[0]) < 1000
    assert scale.measure_driver(8) > 0
