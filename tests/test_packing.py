"""What goes into an archive, and how it is written."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tarfile
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from headrace.errors import ConfigurationError
from headrace.packing import (
    Distributions,
    archive as contents,
    archive as interpreter,
    check,
    distributions,
    write_archive,
)
from headrace.packing.distributions import (
    SITE,
    files_of,
    modules_of,
    place_of,
    requirement_closure,
)

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"


def installed(folder: Path, name: str, *requires: str, files: tuple[str, ...] = ()) -> Distribution:
    """Make a distribution as an installer leaves it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    lines = [f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {one}" for one in requires)]
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{file}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in (*files, "gone.py")))
    return PathDistribution(info)


@pytest.mark.parametrize(
    ("file", "place"),
    {
        "pyspark/sql/session.py": f"{SITE}/pyspark/sql/session.py",
        "pyspark/jars/spark-core.jar": None,
        "pyspark/examples/src/pi.py": None,
        "pyspark/sbin/start-all.sh": None,
        "pyspark/__pycache__/conf.cpython-311.pyc": None,
        "__pycache__/six.cpython-311.pyc": None,
        "pyarrow/include/arrow/api.h": None,
        "pyarrow/tests/test_array.py": None,
        "pyarrow/lib.pyx": None,
        "pyarrow/libarrow.so.2600": f"{SITE}/pyarrow/libarrow.so.2600",
        "pyarrow/libarrow_python.so": None,
        "pyarrow/libarrow_python.so.2600": f"{SITE}/pyarrow/libarrow_python.so.2600",
        "pyarrow/libarrow_python_flight.so.2600.1.0": None,
        "pandas/tests/test_api.py": None,
        "pandas/testing.py": f"{SITE}/pandas/testing.py",
        "numpy/_core/tests/test_array.py": None,
        "numpy/testing/__init__.py": f"{SITE}/numpy/testing/__init__.py",
        "astropy/tests/runner.py": f"{SITE}/astropy/tests/runner.py",
        "six-1.17.dist-info/METADATA": f"{SITE}/six-1.17.dist-info/METADATA",
        "six-1.17.dist-info/direct_url.json": None,
        "../../../bin/headrace": None,
        "../../../include/python3.11/greenlet.h": None,
        "../../../share/zones/paris": "share/zones/paris",
        "../../../../elsewhere": None,
        "/etc/passwd": None,
        "wheel-1.data/purelib/wheel.py": f"{SITE}/wheel.py",
        "wheel-1.data/scripts/wheel": None,
        "wheel-1.data/data/share/wheel.txt": "share/wheel.txt",
    }.items(),
)
def test_a_distributions_file_has_its_place_or_none(file: str, place: str | None) -> None:
    assert place_of(file) == place


def test_files_that_are_gone_are_not_packed(tmp_path: Path) -> None:
    found = installed(
        tmp_path, "one", files=("one/__init__.py", "one/a.so", "_two.py", "doc/x.txt")
    )
    assert files_of(found) == {
        f"{SITE}/{file}": tmp_path / file
        for file in ("one/__init__.py", "one/a.so", "_two.py", "doc/x.txt")
    }
    assert modules_of(found) == {"one", "_two"}


def test_a_distribution_without_a_list_of_its_files_is_refused(tmp_path: Path) -> None:
    found = installed(tmp_path, "one")
    (tmp_path / "one-1.0.dist-info" / "RECORD").unlink()
    with pytest.raises(ConfigurationError, match=r"one 1.0 was installed without a list") as error:
        files_of(found)
    assert "virtual environment" in (error.value.hint or "")


def test_requirements_are_followed(tmp_path: Path) -> None:
    by_name = {
        name: installed(tmp_path, name, *requires)
        for name, requires in {
            "job": ("a_B>=1", "c[fast]", "win; sys_platform == 'win32'", "d; extra == 'more'"),
            "a-b": ("job",),
            "c": ("e; extra == 'fast'", "f; extra == 'slow'"),
            "d": (),
            "e": ("c[slow]",),
            "f": (),
        }.items()
    }
    found = requirement_closure(["job"], by_name.get)
    assert list(found) == ["a-b", "c", "e", "f", "job"]
    assert list(requirement_closure(["job[more]", "d"], by_name.get)) == [*sorted(by_name)]
    del by_name["e"]
    with pytest.raises(
        ConfigurationError, match="e is not installed here, and c requires it"
    ) as no:
        requirement_closure(["job"], by_name.get)
    assert no.value.hint == "Install it: pip install 'e; extra == \"fast\"'"


def test_what_is_packed_may_be_named_by_its_module() -> None:
    with Distributions(print) as found:
        assert found.named("pyyaml") == "pyyaml"
        assert found.named("yaml") == "PyYAML"
        with pytest.raises(ConfigurationError, match="--with nowhere: no distribution or module"):
            found.named("nowhere")


def test_modules_are_found_by_the_distribution_that_they_lie_in(tmp_path: Path) -> None:
    import yaml

    with Distributions(print) as found:
        assert found.owner_of("yaml", Path(yaml.__file__)) == "pyyaml"
        assert found.owner_of("yaml.nodes", Path(yaml.__file__)) == "pyyaml"
        assert found.owner_of("headrace.streams", Path(__file__)) == "headrace"
        assert found.owner_of("yaml", tmp_path / "yaml.py") is None
        assert found.owner_of("helpers", tmp_path / "helpers.py") is None


def test_a_development_install_is_packed_as_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, site = tmp_path / "a project", tmp_path / "site"
    (project / "src" / "proj").mkdir(parents=True)
    (project / "src" / "proj" / "__init__.py").write_text("VALUE = 1\n")
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "proj"\nversion = "1.0"\ndependencies = ["pyyaml"]\n'
    )
    installed(site, "proj", files=("proj.pth",))
    origin = {"url": project.as_uri(), "dir_info": {"editable": True}}
    (site / "proj-1.0.dist-info" / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(str(site))
    told: list[str] = []
    with Distributions(told.append) as found:
        module = project / "src" / "proj" / "__init__.py"
        assert found.owner_of("proj", module) == "proj"
        assert found.owner_of("jobs", project / "jobs.py") is None
        built = found.find("proj")
        assert built is not None
        assert built.requires == ["pyyaml"]
        text = files_of(built)[f"{SITE}/proj/__init__.py"].read_text()
        assert (text, modules_of(built)) == ("VALUE = 1\n", {"proj"})
    assert told == [f"proj runs from {project}: building a wheel of it ..."]
    assert list(project.rglob("*.whl")) == []


@pytest.mark.parametrize(
    ("name", "file", "place"),
    [
        ("helpers", "helpers.py", "app/helpers.py"),
        ("words", "words/__init__.py", "app/words/__init__.py"),
        ("words.split", "words/split.py", "app/words/split.py"),
        ("words.fast", "words/fast.cpython-311.so", "app/words/fast.cpython-311.so"),
    ],
)
def test_modules_of_the_user_lie_where_they_are_imported(name: str, file: str, place: str) -> None:
    assert contents._place_of_module(name, Path("/somewhere") / file) == place


def test_the_standard_library_leaves_out_what_no_program_asks_for() -> None:
    packed = dict(interpreter._standard_library())
    assert {"os.py", "encodings/utf_8.py", "unittest/mock.py", "asyncio/events.py"} <= packed.keys()
    found = [
        name
        for name in packed
        if name.startswith(("test/", "idlelib/", "ensurepip/", "tkinter/", "site-packages/"))
        or "__pycache__" in name
        or name.endswith((".a", ".pyc"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "is_packed"),
    {
        "libssl.so.3": True,
        "libcrypt.so.1": True,
        "libnsl.so.1": False,
        "libnsl.so.2": True,
        "libstdc++.so.6": True,
        "libmagic.so.1": True,
        "libc.so.6": False,
        "libm.so.6": False,
        "libdl.so.2": False,
        "ld-linux-x86-64.so.2": False,
    }.items(),
)
def test_libraries_of_the_c_library_stay_with_the_machine(name: str, is_packed: bool) -> None:
    assert (interpreter._OF_THE_SYSTEM.match(name) is None) == is_packed


def test_libraries_are_those_that_lie_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    told = (
        "/a.so:\n\tlinux-vdso.so.1 (0x00007fff)\n\tlibc.so.6 => /lib/libc.so.6 (0x00007f01)\n"
        "\tlibz.so.1 => /first/libz.so.1 (0x00007f02)\n\tlibgone.so.1 => not found\n"
        "/b.so:\n\tlibz.so.1 => /second/libz.so.1 (0x00007f02)\n"
        "\tlibours.so.1 => /site/x.libs/libours.so.1 (0x00007f03)\n\t/lib64/ld-linux.so.2 (0x00007f)\n"
    )

    def ldd(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, told, "")

    monkeypatch.setattr(subprocess, "run", ldd)
    found = interpreter.libraries_of([Path("/a.so"), Path("/b.so")], inside=[Path("/site")])
    assert found == {"lib/libz.so.1": Path("/first/libz.so.1")}

    def no_ldd(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", no_ldd)
    with pytest.raises(ConfigurationError, match="no ldd here"):
        interpreter.libraries_of([Path("/a.so")], inside=[])


def test_the_program_that_starts_python_finds_it_from_anywhere(tmp_path: Path) -> None:
    programs = tmp_path / "one" / "bin"
    programs.mkdir(parents=True)
    for name, text in {
        "python": interpreter._START,
        VERSION: '#!/bin/sh\necho "$0|$LD_LIBRARY_PATH|$PYTHONHOME|$*"\n',
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "link").symlink_to("one/bin/python")
    (tmp_path / "other").symlink_to(tmp_path / "link")
    variables = {"CDPATH": "/", "PYTHONHOME": "/gone"}
    expected = f"{programs}/{VERSION}|{tmp_path}/one/lib||-c a b\n"
    for program in (
        "./one/bin/python",
        "one/bin/python",
        f"{programs}/python",
        "./link",
        "./other",
    ):
        answer = subprocess.run(
            [program, "-c", "a b"],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (answer.stdout, answer.stderr) == (expected, ""), program
    more = subprocess.run(
        ["./link"],
        cwd=tmp_path,
        env={"LD_LIBRARY_PATH": "/a:/b"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert more.stdout == f"{programs}/{VERSION}|{tmp_path}/one/lib:/a:/b||\n"


def test_the_same_contents_are_the_same_bytes(tmp_path: Path) -> None:
    made = []
    for number, place in enumerate(("one", "two")):
        folder = tmp_path / place
        folder.mkdir()
        for name in ("a", "run"):
            (folder / name).write_text(f"text of {name}")
            os.utime(folder / name, (number * 1000, number * 1000))
        (folder / "run").chmod(0o755 if number else 0o700)
        files: dict[str, Path | bytes] = {
            "lib/a": folder / "a",
            "lib/run": folder / "run",
            "bin/python": b"#!/bin/sh\n",
            "headrace-pack.json": b"{}\n",
        }
        backwards = dict(reversed(files.items())) if number else files
        made.append(write_archive(backwards, folder / "env.tar.gz"))
    assert made[0].digest == made[1].digest
    assert made[0].path.read_bytes() == made[1].path.read_bytes()
    with tarfile.open(made[0].path) as archive:
        entries = [(one.name, one.mode, one.mtime, one.uid) for one in archive.getmembers()]
    assert entries == [
        ("headrace-pack.json", 0o644, 0, 0),
        ("bin/python", 0o755, 0, 0),
        ("lib/a", 0o644, 0, 0),
        ("lib/run", 0o755, 0, 0),
    ]


def test_an_archive_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    output = tmp_path / "env.tar.gz"
    output.write_text("the one before")

    def fails(archive: Path) -> None:
        assert archive.stat().st_size > 0
        raise ConfigurationError("It does not run.")

    with pytest.raises(ConfigurationError, match="does not run"):
        write_archive({"a": b"a"}, output, before=fails)
    with pytest.raises(FileNotFoundError, match="gone"):
        write_archive({"a": tmp_path / "gone"}, output)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(
            ConfigurationError, match=r"env.tar.gz cannot be written: File too large"
        ):
            write_archive({"a": os.urandom(100_000)}, output)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert output.read_text() == "the one before"
    assert list(tmp_path.iterdir()) == [output]
    with pytest.raises(ConfigurationError, match=r"no/env.tar.gz cannot be written: No such file"):
        write_archive({"a": b"a"}, tmp_path / "no" / "env.tar.gz")
    write_archive({"a": b"a"}, output)
    assert tarfile.is_tarfile(output)


MOVED = "import sys; sys.prefix = '/moved'; code = sys.argv[2]; del sys.argv[1:3]; exec(code)"


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (
            f'exec {sys.executable} "$@" nowhere',
            "cannot import nowhere: ModuleNotFoundError: No mod",
        ),
        (
            f'exec {sys.executable} -c "{MOVED}" "$@"',
            "The packed Python takes /.* from this machine",
        ),
        ("echo no loader >&2; exit 3", "The packed Python does not run: no loader"),
    ],
)
def test_what_does_not_run_is_named(tmp_path: Path, start: str, message: str) -> None:
    program = f"#!/bin/sh\n{start}\n".encode()
    archive = write_archive({"bin/python": program}, tmp_path / "env.tar.gz")
    with pytest.raises(ConfigurationError, match=message) as error:
        check(archive.path, ("json",))
    assert "--no-check" in (error.value.hint or "")


def test_a_wheel_needs_somebody_who_builds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text('[build-system]\nbuild-backend = "nowhere.build"\n')
    monkeypatch.setattr(distributions, "_is_importable", lambda _: False)
    with pytest.raises(ConfigurationError, match="neither nowhere nor pip is installed") as error:
        distributions.build_wheel(tmp_path, tmp_path)
    assert error.value.hint == "Install nowhere, which builds it."
    monkeypatch.setattr(distributions, "_is_importable", lambda name: name == "nowhere.build")
    with pytest.raises(ConfigurationError, match="No module named 'nowhere'") as error:
        distributions.build_wheel(tmp_path, tmp_path)
    assert "python -m pip wheel" in (error.value.hint or "")
