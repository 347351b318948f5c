"""The layers of the package, read from the imports in its source; nothing is imported to find out.

Rows from the bottom up. An import points down, or sideways within a row as long as no cycle comes of it. What stands
under `if TYPE_CHECKING:` is not an import at run time and does not count.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import asyncdispatch

PACKAGE = "asyncdispatch"
SOURCE = Path(asyncdispatch.__file__).parent

VOCABULARY, CORE, SHELL, PUBLIC, APPLICATIONS, PEOPLE = range(6)
ROWS = {
    "errors": VOCABULARY,
    "calls": VOCABULARY,
    "contexts": VOCABULARY,
    "outcomes": VOCABULARY,
    "config": VOCABULARY,
    "_core": CORE,
    # Every other top-level module is of the shell.
    "": PUBLIC,  # asyncdispatch/__init__.py, which gathers the public names of the rows below it
    "nomination": APPLICATIONS,
    "kubernetes": APPLICATIONS,
    "testing": APPLICATIONS,
    "simulation": APPLICATIONS,
    "_demo": PEOPLE,
    "cli": PEOPLE,
    "__main__": PEOPLE,
}

# What a module that decides may import from outside the package: no clock, loop, randomness, logging or I/O.
PURE_IMPORTS = {
    "__future__", "abc", "bisect", "collections", "copy", "dataclasses", "enum", "functools", "heapq", "inspect",
    "itertools", "math", "numbers", "operator", "re", "types", "typing",
}  # fmt: skip
IMPURE_BUILTINS = {"__import__", "breakpoint", "id", "input", "open", "print"}  # id: L16, no identity decides anything

Graph = Mapping[str, set[str]]


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_package() -> dict[str, str]:
    """Source by dotted module name; a package has the name of its folder."""
    modules = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = (PACKAGE, *path.relative_to(SOURCE).with_suffix("").parts)
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    return modules


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def nodes_at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below, but for the bodies of `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and is_type_checking(child.test):
            for statement in child.orelse:
                yield statement
                yield from nodes_at_run_time(statement)
        else:
            yield child
            yield from nodes_at_run_time(child)


def imported_names(name: str, source: str, *, is_package: bool) -> Iterator[str]:
    """Absolute dotted names that a module imports at any depth; `from a import b` gives `a.b`."""
    for node in nodes_at_run_time(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = name.split(".")
                above = node.level - 1 if is_package else node.level
                anchor = ".".join(parents[: len(parents) - above])
                base = f"{anchor}.{base}" if base else anchor
            yield from (f"{base}.{alias.name}" for alias in node.names)


def import_graph(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """Which modules of the package each one makes Python load, beside the packages that it is in itself."""
    graph: dict[str, set[str]] = {}
    for name, source in modules.items():
        targets = graph[name] = set()
        is_package = any(other.startswith(f"{name}.") for other in modules)
        for imported in imported_names(name, source, is_package=is_package):
            if not is_within(imported, PACKAGE):
                continue
            target = imported
            while target not in modules:  # a name inside a module
                target = target.rpartition(".")[0]
            targets.add(target)
            while target := target.rpartition(".")[0]:
                if not is_within(name, target):
                    targets.add(target)
        targets.discard(name)
    return graph


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def row(name: str) -> int:
    return ROWS.get(name.removeprefix(PACKAGE).removeprefix(".").partition(".")[0], SHELL)


def imports_that_point_up(graph: Graph) -> list[str]:
    return [f"{name} -> {target}" for name in graph for target in sorted(graph[name]) if row(target) > row(name)]


def cycles(graph: Graph) -> list[list[str]]:
    """The strongly connected components of more than one module."""
    reach = {name: reachable(graph, name) for name in graph}
    components = {tuple(sorted(other for other in reach[name] if name in reach[other])) for name in graph}
    return [list(component) for component in sorted(components) if len(component) > 1]


def reachable(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph[waiting.pop()]:
            if target not in found:
                found.add(target)
                waiting.append(target)
    return found


def impurities(name: str, source: str, *, is_package: bool = False) -> list[str]:
    """What a module uses of the world outside: imports not known to be pure, and built-ins that do I/O."""
    found = []
    for imported in imported_names(name, source, is_package=is_package):
        top = imported.partition(".")[0]
        if top != PACKAGE and top not in PURE_IMPORTS:
            found.append(f"{name} imports {imported}")
    for node in nodes_at_run_time(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS:
            found.append(f"{name}:{node.lineno} calls {node.func.id}")
    return found


# ---- the package -----------------------------------------------------------------------------------------------------


def test_imports_point_down() -> None:
    """No module imports one of a row above its own."""
    assert imports_that_point_up(import_graph(read_package())) == []


def test_no_import_cycles() -> None:
    """Modules of one row may import each other, but never in a circle."""
    assert cycles(import_graph(read_package())) == []


def test_errors_import_nothing_of_the_package() -> None:
    """Every module may raise, so errors stand below all of them."""
    assert import_graph(read_package()).get(f"{PACKAGE}.errors", set()) == set()


def test_decisions_are_pure() -> None:
    """The core and the vocabulary that it uses know no clock, event loop, randomness, logging or I/O."""
    modules = read_package()
    packages = {name.rpartition(".")[0] for name in modules}
    found = [
        impurity
        for name, source in modules.items()
        if row(name) in (VOCABULARY, CORE)
        for impurity in impurities(name, source, is_package=name in packages)
    ]
    assert found == []


def test_public_names() -> None:
    """`__all__` names each public name once, and each resolves."""
    names = asyncdispatch.__all__
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(asyncdispatch, name)] == []
    unlisted = {
        name
        for name, value in vars(asyncdispatch).items()
        if not name.startswith("_") and not isinstance(value, type(sys)) and name not in names
    }
    assert unlisted == set()


IMPORT_WITHOUT_PYTEST = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pytest", "_pytest"}:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Refuse())
import {module}
"""


def import_without_pytest(module: str) -> subprocess.CompletedProcess[str]:
    program = IMPORT_WITHOUT_PYTEST.replace("{module}", module)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


def test_testing_imports_without_pytest() -> None:
    """The test tools serve people who use another runner."""
    if not (SOURCE / "testing" / "__init__.py").exists():
        pytest.skip("asyncdispatch.testing does not exist yet")
    result = import_without_pytest(f"{PACKAGE}.testing")
    assert result.returncode == 0, result.stderr


# ---- the checks themselves: each must be able to fail ----------------------------------------------------------------


def graph_of(**sources: str) -> dict[str, set[str]]:
    """The graph of a small package; `_core__lanes` stands for `asyncdispatch._core.lanes`."""
    modules = {f"{PACKAGE}.{name}".replace("__", "."): source for name, source in sources.items()}
    for name in list(modules):
        while name := name.rpartition(".")[0]:
            modules.setdefault(name, "")
    return import_graph(modules)


@pytest.mark.parametrize(
    "source",
    [
        "from asyncdispatch.dispatcher import Dispatcher",
        "from asyncdispatch import dispatcher",
        "import asyncdispatch.dispatcher as d",
        "from ..dispatcher import Dispatcher",
        "from .. import dispatcher",
        "def f():\n    from asyncdispatch.dispatcher import Dispatcher",
        "if TYPE_CHECKING:\n    pass\nelse:\n    from asyncdispatch.dispatcher import Dispatcher",
        "try:\n    from asyncdispatch.dispatcher import Dispatcher\nexcept ImportError:\n    pass",
    ],
)
def test_an_import_that_points_up_is_found(source: str) -> None:
    """Whatever its spelling and wherever it stands."""
    graph = graph_of(_core__lanes=source, dispatcher="")
    assert imports_that_point_up(graph) == ["asyncdispatch._core.lanes -> asyncdispatch.dispatcher"]


@pytest.mark.parametrize(
    "source",
    [
        "from asyncdispatch.calls import APICall",
        "from asyncdispatch._core.states import Entry",
        "from asyncdispatch._core import states",
        "from .states import Entry",
        "if TYPE_CHECKING:\n    from asyncdispatch.dispatcher import Dispatcher",
        "if typing.TYPE_CHECKING:\n    from asyncdispatch.dispatcher import Dispatcher",
    ],
)
def test_other_imports_are_not(source: str) -> None:
    """Down, sideways, and for the type checker only."""
    graph = graph_of(_core__lanes=source, _core__states="", calls="", dispatcher="")
    assert imports_that_point_up(graph) == []


def test_public_names_count_as_a_row_of_their_own() -> None:
    """An application may take a name from the package itself; the shell, which the package imports, may not."""
    graph = graph_of(kubernetes="from asyncdispatch import Dispatcher", rollout="from asyncdispatch import Dispatcher")
    assert imports_that_point_up(graph) == ["asyncdispatch.rollout -> asyncdispatch"]


def test_a_cycle_is_found() -> None:
    """Also a long one, and each only once."""
    graph = graph_of(
        a="from asyncdispatch import b",
        b="from asyncdispatch.c import d",
        c="def late():\n    from . import a",
        d="from asyncdispatch.a import x",
    )
    assert cycles(graph) == [["asyncdispatch.a", "asyncdispatch.b", "asyncdispatch.c"]]


def test_a_cycle_through_a_package_is_found() -> None:
    """Importing a module of another package runs that package's `__init__` as well."""
    graph = graph_of(
        testing="from asyncdispatch.testing.server import EmbeddedAPIServer",
        testing__server="from asyncdispatch.kubernetes.calls import PodBinding",
        kubernetes__calls="",
        kubernetes="from asyncdispatch.testing.clock import VirtualClock",
        testing__clock="",
    )
    assert cycles(graph) == [["asyncdispatch.kubernetes", "asyncdispatch.testing", "asyncdispatch.testing.server"]]


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from time import monotonic",
        "import asyncio.events",
        "import random as r",
        "def f():\n    import logging",
        "from datetime import datetime",
        "from tenacity import wait_fixed",
        "def f():\n    print(1)",
        "text = open('x').read()",
        "key = id(object())",
    ],
)
def test_an_impure_module_is_found(source: str) -> None:
    """Clocks, loops, randomness, logging and I/O, at any depth."""
    assert len(impurities("asyncdispatch._core.lanes", source)) == 1


def test_a_pure_module_passes() -> None:
    """Containers, arithmetic and typing; and anything where only the type checker looks."""
    source = (
        "from __future__ import annotations\n"
        "import heapq\n"
        "from collections.abc import Callable\n"
        "from typing import TYPE_CHECKING\n"
        "from .states import Entry\n"
        "if TYPE_CHECKING:\n"
        "    import concurrent.futures\n"
    )
    assert impurities("asyncdispatch._core.lanes", source) == []


def test_pytest_is_really_blocked() -> None:
    """The program that imports without pytest fails where pytest is needed."""
    result = import_without_pytest("pytest")
    assert result.returncode == 1
    assert "pytest is blocked" in result.stderr
