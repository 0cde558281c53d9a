"""What is brought to a cluster's machines, and the command that Spark starts workers by."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import SettingsError
from headrace.packing.archive import MANIFEST
from headrace.settings import JobSettings
from headrace.spark.cluster import Shipment
from headrace.spark.statistics import own_versions

CLUSTER = "spark://10.0.0.1:7077"


def packed(file: Path, *, name: str = MANIFEST, **versions: str) -> Path:
    own = {**own_versions(), **versions}
    told = {"headrace": own["headrace"], "platform": {"python": own["python"]}}
    text = json.dumps(told).encode()
    with tarfile.open(file, "w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    return file


def shipped(**settings: Any) -> Shipment:
    return Shipment.of(JobSettings(**{"master": CLUSTER, **settings}))


def test_workers_run_the_python_that_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Spark's own setting goes before the variable, as in Spark; both go before an archive's."""
    archive = packed(tmp_path / "env.tar.gz")
    named = {"spark.pyspark.python": "/opt/python"}
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    found = [shipped().python, shipped(archive=archive).python]
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    found += [shipped().python, shipped(spark_config=named).python]
    found += [shipped(spark_config=named, archive=archive).python]
    packed_one = "./environment/bin/python"
    assert found == [sys.executable, packed_one, "/usr/bin/python3", "/opt/python", "/opt/python"]


def test_an_archive_goes_beside_those_that_are_given(tmp_path: Path) -> None:
    archive = packed(tmp_path / "env.tar.gz")
    given = {"spark.archives": "data.zip#data"}
    config = shipped(archive=archive, spark_config=given).config
    assert config == {"spark.archives": f"data.zip#data,{archive}#environment"}
    assert shipped().config == {}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"archive": "nowhere.tar.gz"}, "there is no file nowhere.tar.gz"),
        ({"py_files": "nowhere.py"}, "there is no file nowhere.py"),
        ({"archive": "env.tar.gz", "master": "local[2]"}, "have its Python"),
        ({"archive": "other.tar.gz"}, "holds python 2.7.18, but this driver runs python"),
        ({"archive": "broken.tar.gz"}, "broken.tar.gz is not an archive of a job"),
    ],
)
def test_what_cannot_be_shipped_is_told_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: dict[str, str], why: str
) -> None:
    packed(tmp_path / "env.tar.gz")
    packed(tmp_path / "other.tar.gz", python="2.7.18")
    (tmp_path / "broken.tar.gz").write_bytes((tmp_path / "env.tar.gz").read_bytes()[:20])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError) as refused:
        shipped(**settings)
    assert why in str(refused.value)


def test_archives_of_others_are_left_to_the_workers(tmp_path: Path) -> None:
    archive = packed(tmp_path / "env.tar.gz", name="conda-meta/history", python="2.7.18")
    assert shipped(archive=archive).config


def test_the_driver_s_own_python_stands_in_for_one_that_is_unpacked_elsewhere(
    tmp_path: Path,
) -> None:
    shipment = shipped(archive=packed(tmp_path / "env.tar.gz"))
    home = tmp_path / "with space"
    assert shipment.stand_in(home) == home
    # A second start finds it there.
    assert shipment.stand_in(home) == home
    words = [shipment.python, "-c", "import sys; print(sys.prefix, sys.argv[1])", "a b"]
    told = subprocess.run(words, cwd=home, capture_output=True, text=True, check=True).stdout
    assert told == f"{sys.prefix} a b\n"
    assert shipped(spark_config={"spark.pyspark.python": "python3"}).stand_in(home) is None
    assert shipped().stand_in(home) is None


def test_the_command_is_named_while_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "mine")
    with shipped(spark_config={"spark.pyspark.python": "python3"}).named():
        during = os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"]
    assert during == ("python3", "mine")
    assert "PYSPARK_PYTHON" not in os.environ
