"""``headrace pack`` makes what runs elsewhere; it packs once, for all tests here."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace import packing
from tests.cli.programs import WORD_COUNT, write

ROOT = Path(__file__).parents[2]

JOB = WORD_COUNT.replace("line.split()", "words_of(line)").replace(
    "from headrace import", "import fastavro\nfrom helpers import words_of\nfrom headrace import", 1
)

HELPERS = """
def words_of(line):
    from texts.parting import parted
    return parted(line)

import texts.parting
"""

# Runs in the packed Python.
TRIAL = """
import json, os, subprocess, sys
from pathlib import Path

from headrace import TopologyTestDriver, serdes
from headrace.cli.loading import load_program

program = load_program(Path(sys.prefix) / "app" / "job.py")
with TopologyTestDriver(program.topology) as driver:
    driver.input("lines", serdes.string).send("to be or not to be")
    counts = {record.key: record.value for record in driver.output("counts", serdes.json).read_all()}
import sqlglot, ssl, sqlite3, ctypes, headrace.spark
child = [sys.executable, "-c", "import sys, ssl; print(sys.prefix)"]
print(json.dumps({
    "counts": counts,
    "prefix": sys.prefix,
    "path": sys.path,
    "files": [getattr(module, "__file__", None) for module in sys.modules.values()],
    "libraries": os.environ.get("LD_LIBRARY_PATH"),
    "child": subprocess.run(child, capture_output=True, text=True).stdout.strip(),
    "mapped": sorted({
        line.split(maxsplit=5)[-1].strip()
        for line in open("/proc/self/maps") if ".so" in line and "/" in line
    }),
}))
"""


@dataclass(frozen=True, slots=True)
class Packed:
    archive: Path
    told: str


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    folder = tmp_path_factory.mktemp("packed")
    write(folder, JOB, "job.py")
    write(folder, HELPERS, "helpers.py")
    (folder / "texts").mkdir()
    write(folder / "texts", "", "__init__.py")
    write(folder / "texts", "def parted(line):\n    return line.split()\n", "parting.py")
    answer = subprocess.run(
        [
            *(sys.executable, "-m", "headrace", "pack", "job.py", "--output", "env.tar.gz"),
            *("--with", "sqlglot"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return Packed(folder / "env.tar.gz", answer.stdout + answer.stderr)


def hidden(command: list[str]) -> list[str]:
    """Let a command run where neither this project nor this Python can be found."""
    places = {ROOT, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()} - {Path("/usr")}
    mounts = " && ".join(f"mount -t tmpfs none '{place}'" for place in sorted(places, reverse=True))
    apart = ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        return command
    return [*apart, *command]


@pytest.mark.slow
def test_a_packed_job_runs_where_nothing_else_is(packed: Packed, tmp_path: Path) -> None:
    with tarfile.open(packed.archive) as archive:
        assert archive.next().name == "headrace-pack.json"  # type: ignore[union-attr]
        archive.extractall(tmp_path / "environment", filter="fully_trusted")
    (tmp_path / "trial.py").write_text(TRIAL)
    answer = subprocess.run(
        hidden(["env", "-i", "./environment/bin/python", "trial.py"]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout)
    home = str(tmp_path / "environment")
    assert told["counts"] == {"to": 2, "be": 2, "or": 1, "not": 1}
    assert (told["prefix"], told["child"], told["libraries"]) == (home, home, None)
    outside = [
        path
        for path in (*told["path"], *told["files"])
        if path and not path.startswith(home) and path not in {str(tmp_path), "trial.py"}
    ]
    assert outside == [f"{tmp_path}/trial.py"]
    system = ("/ld-linux", "/libc.so", "/libm.so", "/libdl.so", "/libpthread.so", "/librt.so")
    others = [path for path in told["mapped"] if not path.startswith(home)]
    assert [path for path in others if not any(name in path for name in system)] == []


@pytest.mark.slow
def test_an_archive_tells_what_is_in_it(packed: Packed) -> None:
    with tarfile.open(packed.archive) as archive:
        names = set(archive.getnames())
        first = archive.extractfile("headrace-pack.json")
        assert first is not None
        manifest = json.loads(first.read())
        code = archive.extractfile(f"{packing.SITE}/headrace/cli/_pack.py")
        assert code is not None
        assert code.read() == (ROOT / "src/headrace/cli/_pack.py").read_bytes()
    assert {name for name in names if name.startswith("app/")} == {
        *("app/job.py", "app/helpers.py", "app/texts/__init__.py", "app/texts/parting.py")
    }
    assert {"headrace", "pyspark", "pyarrow", "fastavro", "sqlglot"} <= {*manifest["distributions"]}
    assert manifest["distributions"].keys().isdisjoint({"pytest", "mypy", "setuptools", "pip"})
    assert manifest["program"] == "app/job.py"
    assert manifest["platform"] == packing.platform_of()
    assert not any(name.startswith(f"{packing.SITE}/pyspark/jars/") for name in names)
    for line in ("Packing word-count for Python", "fastavro ", "sha256: ", "--archive env.tar.gz"):
        assert line in packed.told
    assert packed.archive.stat().st_size < 200 * 1024 * 1024
    assert [one.name for one in packed.archive.parent.glob("*.gz*")] == ["env.tar.gz"]
