"""Loads a user's file and finds the topology that it builds."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from headrace.errors import ConfigurationError, HeadraceError

if TYPE_CHECKING:
    from headrace.topology import Operator, Topology
    from headrace.transactions import TransactionTopology


# ``headrace describe``: shows what a file builds.


def describe(
    file: Annotated[
        Path, typer.Argument(help="The Python file that builds the topology, or FILE:NAME.")
    ],
    dot: Annotated[bool, typer.Option("--dot", help="Write Graphviz DOT.")] = False,
) -> None:
    """Print a pipeline's graph, its stages, its topics and its state stores."""
    topology = load_program(file).topology
    sys.stdout.write(topology.to_dot() if dot else topology.describe())


T = TypeVar("T")

_HINT = "Write `topology = builder.build()` at the top level of the file."


@dataclass(frozen=True, slots=True)
class Program:
    """A user's file and the topology in it."""

    topology: Topology | TransactionTopology
    #: The file, and what it imported from its own folder; their code travels with the job.
    modules: tuple[ModuleType, ...]

    @property
    def groups(self) -> tuple[Topology, ...]:
        """The topologies that the engine runs: the only one, or that of each group."""
        from headrace.topology import Topology

        return (self.topology,) if isinstance(self.topology, Topology) else self.topology.groups

    @property
    def operators(self) -> dict[str, Operator]:
        """Every operator of every group, by its name."""
        return {operator.name: operator for each in self.groups for operator in each.operators}


def load_program(given: Path) -> Program:
    """Run a file and find its topology.

    That is the variable ``topology``, or else the only topology, or else what the only builder (of
    streams or of transactions) builds.  For ``FILE:NAME`` it is the variable of that name.  Spark's
    workers do not see the folder of the file: its code, and that of modules beside it, is pickled
    by value from here on.

    Raises
    ------
    ConfigurationError
        If there is no such file, it fails, or it holds no topology or several.
    """
    path, variable = parted(given)
    if not path.is_file():
        message = f"There is no file {path}."
        raise ConfigurationError(message, hint="Give the Python file that builds the topology.")
    before = set(sys.modules)
    module = _imported(path)
    folder = path.resolve().parent
    local = [
        loaded
        for name, loaded in sys.modules.items()
        if name not in before and loaded is not module and _lies_in(loaded, folder)
    ]
    for loaded in local:
        _pickle_by_value(loaded)
    return Program(_topology_of(module, path, variable), (module, *local))


def _imported(path: Path) -> ModuleType:
    name = path.stem
    if name in sys.modules or name in sys.stdlib_module_names or not name.isidentifier():
        # A file called json.py must not stand in for the module of that name.
        name = f"headrace_program_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        message = f"{path} is no Python file."
        raise ConfigurationError(message, hint="Its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Before it runs: build() checks whether the operators can be pickled, and must see this.
    _pickle_by_value(module)
    # Imports of its neighbours work as they do for a script.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except HeadraceError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed(path, error) from error
    return module


def _pickle_by_value(module: ModuleType) -> None:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _failed(path: Path, error: BaseException) -> ConfigurationError:
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        message = f"{error.filename}:{error.lineno}: {kind}: {error.msg}."
        return ConfigurationError(message, hint="Correct the line.")
    user_lines = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == path or Path(frame.filename).resolve() == path.resolve()
    ]
    where = f"{path}:{user_lines[-1].lineno}" if user_lines else str(path)
    code = f"\n    {user_lines[-1].line}" if user_lines else ""
    message = f"{where}: the file raised {kind}: {error}{code}"
    if isinstance(error, SystemExit):
        hint = "Put what must run only as a script under `if __name__ == '__main__':`."
    else:
        hint = "`headrace --debug` shows the whole traceback."
    return ConfigurationError(message, hint=hint)


def parted(given: Path) -> tuple[Path, str]:
    """Return the file and the variable of ``FILE:NAME``.

    Without a variable, it is ``topology``.
    """
    text, colon, variable = str(given).rpartition(":")
    if colon and variable.isidentifier() and not given.is_file():
        return Path(text), variable
    return given, ""


def _topology_of(module: ModuleType, path: Path, variable: str) -> Topology | TransactionTopology:
    from headrace.streams import StreamBuilder
    from headrace.topology import Topology
    from headrace.transactions import TransactionTopology, TransactionTopologyBuilder

    named = vars(module).get(variable or "topology")
    if isinstance(named, Topology | TransactionTopology):
        return named
    if isinstance(named, StreamBuilder | TransactionTopologyBuilder):
        return named.build()
    if variable:
        message = f"{path} has no topology, and no builder of one, named {variable}."
        raise ConfigurationError(message, hint=_HINT)
    built: dict[str, Topology | TransactionTopology] = {
        **_by_identity(module, Topology),
        **_by_identity(module, TransactionTopology),
    }
    if built:
        return _only(built, "topologies", path)
    building: dict[str, StreamBuilder | TransactionTopologyBuilder] = {
        **_by_identity(module, StreamBuilder),
        **_by_identity(module, TransactionTopologyBuilder),
    }
    if building:
        return _only(building, "builders of topologies", path).build()
    message = f"{path} builds no topology."
    raise ConfigurationError(message, hint=_HINT)


def _by_identity(module: ModuleType, kind: type[T]) -> dict[str, T]:
    found: dict[str, T] = {}
    for name, value in vars(module).items():
        if isinstance(value, kind) and not any(value is other for other in found.values()):
            found[name] = value
    return found


def _only(found: dict[str, T], what: str, path: Path) -> T:
    if len(found) > 1:
        message = f"{path} holds several {what}: {', '.join(found)}."
        raise ConfigurationError(message, hint="Name the one to run `topology`.")
    return next(iter(found.values()))


def _lies_in(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    # Workers have our own code, wherever it lies here.
    if file is None or module.__name__.partition(".")[0] == "headrace":
        return False
    path = Path(file).resolve()
    return path.is_relative_to(folder) and "site-packages" not in path.parts
