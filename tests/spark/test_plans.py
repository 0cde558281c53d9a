"""Plans on their way to workers of other versions, and to machines that lack something."""

from __future__ import annotations

import importlib
import json
import re
import socket
import sys
from dataclasses import field, make_dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import StreamBuilder, serdes, settings as settings_module, tumbling
from headrace.broker import EmbeddedBroker
from headrace.errors import WorkerMismatchError
from headrace.runtime.control import SUMMARY_STAGE, Block, BlockKind
from headrace.runtime.job_plan import JobPlan
from headrace.runtime.task import guarded
from headrace.runtime.user_code import raise_failure
from headrace.settings import JobSettings
from headrace.spark import StreamJob, statistics
from headrace.spark.cluster import make_connection
from headrace.spark.statistics import PlanHandle, own_versions, pickle_plan, unpickle_plan
from tests.spark.pipelines import LIMIT, Rig

MACHINE = socket.gethostname()
Fields = list[Any]


def plan(**settings: Any) -> JobPlan:
    builder = StreamBuilder("job")
    words = builder.source("in", serdes.string).key_by(lambda word: word)
    words.window(tumbling(timedelta(seconds=1))).count().to_stream().sink("out", serdes.json)
    return JobPlan(builder.build(), JobSettings(namesrv="h:1", **settings), "h:1", embedded=True)


def of_versions(handle: PlanHandle, **versions: str) -> PlanHandle:
    header, _, pickled = handle.payload.partition(b"\n")
    told = json.dumps(json.loads(header) | versions).encode()
    return PlanHandle("", told + b"\n" + pickled)


def refused(handle: PlanHandle) -> str:
    with pytest.raises(WorkerMismatchError) as caught:
        unpickle_plan(handle.payload)
    assert not caught.value.retriable
    return str(caught.value)


def test_a_plan_comes_back_as_it_was() -> None:
    sent = plan(max_bytes_per_batch=5_000, batch_timeout=timedelta(seconds=7))
    found = unpickle_plan(pickle_plan(sent).payload)
    assert found.settings == sent.settings
    assert [o.name for o in found.topology.operators] == [o.name for o in sent.topology.operators]
    assert found.stages.time_step == sent.stages.time_step


@pytest.mark.parametrize(
    ("versions", "told"),
    [
        ({"headrace": "0.0.9"}, "headrace 0.0.9"),
        ({"headrace": "1.1.0"}, "headrace 1.1.0"),
        ({"python": "3.12.1"}, "python 3.12.1"),
        ({"pyspark": "4.0.0"}, "pyspark 4.0.0"),
        ({"cloudpickle": "2.2.1"}, "cloudpickle 2.2.1"),
        ({"python": "3.10.0", "pyspark": "3.5.1"}, "python 3.10.0, pyspark 3.5.1"),
    ],
)
def test_a_worker_of_another_version_says_which_machine_has_which(
    versions: dict[str, str], told: str
) -> None:
    own = ", ".join(f"{name} {own_versions()[name]}" for name in versions)
    assert f"machine {MACHINE} runs {own}, and the driver of the job {told}" in refused(
        of_versions(pickle_plan(plan()), **versions)
    )


@pytest.mark.parametrize(
    "versions",
    [
        {"headrace": ".".join([*own_versions()["headrace"].split(".")[:2], "77"])},
        {"python": ".".join([*own_versions()["python"].split(".")[:2], "77"])},
        {"pyarrow": "1.0", "msgspec": "0.1"},
    ],
)
def test_small_differences_are_none(versions: dict[str, str]) -> None:
    assert unpickle_plan(of_versions(pickle_plan(plan()), **versions).payload).job == "job"


def test_nothing_is_unpickled_that_another_version_has_made() -> None:
    handle = of_versions(pickle_plan(plan()), headrace="9.0.0")
    header, _, _ = handle.payload.partition(b"\n")
    assert "headrace 9.0.0" in refused(PlanHandle("", header + b"\nno pickle at all"))


def test_settings_of_spark_stay_with_the_driver(tmp_path: Path) -> None:
    """It starts Spark anew with them, when Java has died; workers need none of its secrets."""
    given = JobSettings(spark_config={"spark.authenticate.secret": "hush"})
    with EmbeddedBroker(tmp_path) as broker:
        connection = make_connection(plan().topology, given, broker.address)
        connection.close()
    assert connection.plan.settings.spark_config == given.spark_config
    assert unpickle_plan(pickle_plan(connection.plan).payload).settings.spark_config == {}


KNOWN: dict[str, Any] = {"max_bytes_per_batch": 5, "batch_timeout": timedelta(seconds=7)}
#: Settings of one version; of the next one, in which they stand elsewhere; and of one that cannot
#: do without another.
OLDER: Fields = [
    ("max_bytes_per_batch", int),
    ("batch_timeout", timedelta),
    ("spark_config", dict, field(default_factory=dict)),
]
NEWER: Fields = [
    ("batch_timeout", timedelta),
    ("added", int, field(default=5)),
    ("made", list, field(default_factory=list)),
    ("spark_config", dict, field(default_factory=dict)),
    ("max_bytes_per_batch", int),
]
DEMANDING: Fields = [("wanted", int), *OLDER]


def versioned(fields: Fields) -> Any:
    kind: Any = make_dataclass("Versioned", fields, frozen=True, slots=True, kw_only=True)
    kind.__module__ = "headrace.settings"
    return kind


def between(
    monkeypatch: pytest.MonkeyPatch, theirs: Fields, own: Fields, **given: object
) -> PlanHandle:
    """Pickle a plan with settings of the driver's version, for a worker of another one."""
    monkeypatch.setattr(JobPlan, "pickle_secret", lambda _: b"s" * 32)
    kind = versioned(theirs)
    monkeypatch.setattr(settings_module, "Versioned", kind, raising=False)
    handle = pickle_plan(replace(plan(), settings=kind(**KNOWN, **given)))
    monkeypatch.setattr(settings_module, "Versioned", versioned(own))
    return handle


def test_settings_travel_by_name_and_new_ones_have_their_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: Any = unpickle_plan(between(monkeypatch, OLDER, NEWER).payload).settings
    assert (found.max_bytes_per_batch, found.batch_timeout) == tuple(KNOWN.values())
    assert (found.added, found.made) == (5, [])


def test_settings_that_nobody_has_set_are_no_matter_to_an_older_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: Any = unpickle_plan(between(monkeypatch, NEWER, OLDER).payload).settings
    assert (found.max_bytes_per_batch, found.batch_timeout) == tuple(KNOWN.values())


@pytest.mark.parametrize(
    ("theirs", "own", "given", "told", "which"),
    [
        (
            NEWER,
            OLDER,
            {"added": 7, "made": [1]},
            "knows no added, made of Versioned",
            "an older version of headrace",
        ),
        (OLDER, DEMANDING, {}, "must know wanted of Versioned", "a newer version of headrace"),
    ],
    ids=["older worker", "older driver"],
)
def test_a_setting_that_one_side_does_not_know_is_named(
    monkeypatch: pytest.MonkeyPatch,
    theirs: Fields,
    own: Fields,
    given: dict[str, object],
    told: str,
    which: str,
) -> None:
    text = refused(between(monkeypatch, theirs, own, **given))
    assert f"machine {MACHINE} {told}" in text
    assert which in text


def test_a_module_that_a_machine_lacks_is_named_with_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "far_away.py").write_text("def shout(word):\n    return word.upper()\n")
    monkeypatch.syspath_prepend(tmp_path)
    far_away = importlib.import_module("far_away")
    builder = StreamBuilder("job")
    builder.source("in", serdes.string).map_values(far_away.shout).sink("out", serdes.string)
    handle = pickle_plan(JobPlan(builder.build(), JobSettings(), "h:1", embedded=True))
    monkeypatch.delitem(sys.modules, "far_away")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path)])
    importlib.invalidate_caches()
    text = refused(handle)
    assert f"machine {MACHINE} has no module named 'far_away', which the job needs" in text
    assert sys.executable in text


def test_what_does_not_fit_ends_the_job_at_once_as_it_is() -> None:
    """No attempt of Spark's, no roll-back of ours could mend it."""
    handle = of_versions(pickle_plan(plan()), python="2.7.18")

    def run() -> list[Block]:
        unpickle_plan(handle.payload)
        return []

    (block,) = guarded(0, run)
    assert (block.stage, block.kind) == (SUMMARY_STAGE, BlockKind.FAILURE)
    with pytest.raises(WorkerMismatchError, match=r"python 2\.7\.18"):
        raise_failure(block.payload)


@pytest.mark.spark
def test_a_job_ends_at_once_where_workers_have_another_version(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither tries again nor rolls back: nothing would change."""
    theirs = own_versions() | {"headrace": "0.0.9"}
    lines, words = rig.topic(queues=1), rig.topic(queues=1)
    rig.send(lines, ["to be"])
    builder = StreamBuilder(f"older-{lines}")
    builder.source(lines, serdes.string).sink(words, serdes.string)
    job = StreamJob(builder.build(), rig.settings())
    with monkeypatch.context() as older:
        older.setattr(statistics, "own_versions", lambda: theirs)
        job.prepare()
    told = f"machine {MACHINE} runs headrace {own_versions()['headrace']}, and the driver of the job headrace 0.0.9"
    with pytest.raises(WorkerMismatchError, match=re.escape(told)), job.start():
        job.await_caught_up(LIMIT)
    assert job.statistics().restarts == 0
    assert rig.read(words) == []
