from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle

import headrace
from headrace.cli.loading import load_program
from headrace.errors import ConfigurationError, TopologyError
from tests.cli.programs import BUILT, SPOUTS_AND_BOLTS, WORD_COUNT, write


@pytest.fixture(autouse=True)
def forget_loaded_modules() -> Iterator[None]:
    modules, path = dict(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - set(modules):
        if not name.startswith(("headrace", "pyspark", "tests")):
            del sys.modules[name]
    sys.path[:] = path


def test_variable_topology_is_taken(tmp_path: Path) -> None:
    text = WORD_COUNT + BUILT + "other = StreamBuilder('other')\n"
    assert load_program(write(tmp_path, text)).topology.name == "word-count"


def test_only_topology_is_taken_whatever_its_name(tmp_path: Path) -> None:
    text = WORD_COUNT + "built = alias = builder.build()\n"
    assert load_program(write(tmp_path, text)).topology.name == "word-count"


def test_only_builder_is_built(tmp_path: Path) -> None:
    assert load_program(write(tmp_path, WORD_COUNT)).topology.name == "word-count"


def test_a_topology_of_spouts_and_bolts_is_built(tmp_path: Path) -> None:
    program = load_program(write(tmp_path, SPOUTS_AND_BOLTS))
    assert program.topology.name == "two"
    assert [group.name for group in program.groups] == ["two", "two-lines"]
    assert {"numbers", "lines-topic", "copies"} <= program.operators.keys()


def test_builders_of_both_kinds_are_several(tmp_path: Path) -> None:
    text = WORD_COUNT + SPOUTS_AND_BOLTS.replace("builder", "second")
    with pytest.raises(ConfigurationError, match="several builders of topologies: builder, second"):
        load_program(write(tmp_path, text))


def test_a_variable_may_be_named_behind_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, WORD_COUNT + SPOUTS_AND_BOLTS.replace("builder", "second"))
    assert load_program(Path(f"{path}:second")).topology.name == "two"
    assert load_program(Path(f"{path}:builder")).topology.name == "word-count"
    with pytest.raises(ConfigurationError, match="no builder of one, named third"):
        load_program(Path(f"{path}:third"))


def test_several_builders_are_refused_by_name(tmp_path: Path) -> None:
    text = WORD_COUNT + "second = StreamBuilder('second')\n"
    with pytest.raises(ConfigurationError, match="several builders of topologies: builder, second"):
        load_program(write(tmp_path, text))


def test_file_without_topology_says_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"topology = builder.build\(\)"):
        load_program(write(tmp_path, "x = 1\n"))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"There is no file .*nothing\.py"):
        load_program(tmp_path / "nothing.py")


def test_syntax_error_names_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, "x = 1\ny = = 2\n")
    with pytest.raises(ConfigurationError, match=rf"{path}:2: SyntaxError"):
        load_program(path)


def test_failing_file_names_the_line_and_shows_it(tmp_path: Path) -> None:
    path = write(tmp_path, "x = 0\ny = 1 / x\n")
    with pytest.raises(ConfigurationError) as caught:
        load_program(path)
    assert f"{path}:2: the file raised ZeroDivisionError" in str(caught.value)
    assert "y = 1 / x" in str(caught.value)


def test_file_that_exits_is_told_to_guard_its_script(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="__main__"):
        load_program(write(tmp_path, "raise SystemExit(3)\n"))


def test_error_of_the_topology_passes_through(tmp_path: Path) -> None:
    text = WORD_COUNT.replace('"counts"', '"lines"') + BUILT
    with pytest.raises(TopologyError):
        load_program(write(tmp_path, text))


def test_what_cannot_be_pickled_is_found_while_loading(tmp_path: Path) -> None:
    text = "import threading\nlock = threading.Lock()\n" + WORD_COUNT.replace(
        "line.split()", "(lock, line.split())[1]"
    )
    with pytest.raises(TopologyError, match="lock"):
        load_program(write(tmp_path, text + BUILT))


def test_script_part_is_not_run(tmp_path: Path) -> None:
    text = WORD_COUNT + BUILT + "if __name__ == '__main__':\n    raise ValueError\n"
    assert load_program(write(tmp_path, text)).topology.name == "word-count"


def test_neighbours_are_imported_and_travel_by_value(tmp_path: Path) -> None:
    write(tmp_path, "def words(line):\n    return line.split()\n", "neighbour.py")
    text = "import neighbour\n" + WORD_COUNT.replace("line.split()", "neighbour.words(line)")
    program = load_program(write(tmp_path, text + BUILT))
    assert [module.__name__ for module in program.modules[1:]] == ["neighbour"]
    pickled = cloudpickle.dumps(sys.modules["neighbour"].words)  # type: ignore[no-untyped-call]
    del sys.modules["neighbour"]
    assert pickle.loads(pickled)("a b") == ["a", "b"]


def test_a_headrace_below_the_folder_of_the_file_is_no_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "", "first_imported_here.py")
    monkeypatch.setattr(headrace, "__path__", [*headrace.__path__, str(tmp_path)])
    program = write(tmp_path, "import headrace.first_imported_here\n" + WORD_COUNT + BUILT)
    assert len(load_program(program).modules) == 1
    monkeypatch.delitem(sys.modules, "headrace.first_imported_here")


def test_file_named_as_a_module_of_python_does_not_replace_it(tmp_path: Path) -> None:
    before = sys.modules["json"]
    program = load_program(write(tmp_path, WORD_COUNT + BUILT, "json.py"))
    assert program.topology.name == "word-count"
    assert sys.modules["json"] is before
