"""What the faults of the mutation check are, and that each is planted where it was found."""

import ast
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutation.operators import Mutant, mutants_of
from tests.mutation.planting import CannotPlant, plant

SOURCE = '''\
"""A module."""

LIMIT: int = 4
NAME = "text"


class Box:
    __slots__ = ("items",)
    full = False

    def __init__(self, items: list[int]) -> None:
        """Take them."""
        self.items = items

    @property
    def first(self) -> int | None:
        return self.items[0] if self.items else None

    def add(self, item: int) -> bool:
        assert item > 0
        if len(self.items) < LIMIT and not self.full:
            self.items.append(item)
            return True
        return False


def total(box: Box) -> int:
    found = 0
    for item in box.items:
        if item == 13:
            continue
        found += item
    return max(found, 0)
'''


def faults(source: str) -> list[str]:
    """Those of the one function in `source`."""
    return [f"{mutant.was} -> {mutant.now}" for mutant in mutants_of(ast.parse(source), "m")]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("if a < b: f()", ["a < b -> a <= b", "a < b -> a >= b", "f() -> pass"]),
        ("if a: f()", ["a -> not a", "f() -> pass"]),
        ("x = a and b and c", ["a and b and c -> a or b or c", "a -> left out", "b -> left out", "c -> left out"]),
        ("x = a is not None", ["a is not None -> a is None"]),
        ("x = 3 * a", ["3 * a -> 3 // a", "3 -> 4", "3 -> 2"]),
        ("x += a", ["x += a -> pass", "x += a -> x -= a"]),
        ("x = 0.5", ["0.5 -> 1.0", "0.5 -> 0.25"]),
        ("x = min(a, b)", ["min(a, b) -> max(a, b)"]),
        ("x.y = a", ["x.y = a -> pass"]),
        ("return a", ["return a -> return None"]),
        ("return", ["return -> pass"]),
        ("raise a", ["raise a -> pass"]),
        ("while a: break", ["a -> not a", "break -> continue", "break -> pass"]),
        ("del x.y[a]", ["del x.y[a] -> pass"]),
        ("x = not a", ["not a -> a"]),
        ("x = [i for i in reversed(a) if i]", ["reversed(a) -> a", "i -> not i"]),
    ],
)
def test_each_kind_of_fault(body: str, expected: list[str]) -> None:
    """One change of the tree each."""
    assert faults(f"def f(a, b, c, x):\n    {body}\n") == expected


@pytest.mark.parametrize("body", ["assert a > 1", '"""Text."""', 'x = f"{a + 1}"', "x = 'text'", "x: 'list[1]'"])
def test_what_tells_nothing_is_left_alone(body: str) -> None:
    """Texts, annotations and asserts are no behaviour."""
    assert faults(f"def f(a, x):\n    {body}\n") == []


def test_a_fault_belongs_to_the_head_of_its_statement() -> None:
    """A test that runs none of these lines can't notice it."""
    source = "def f(a, b):\n    if (\n        a\n        and b\n    ):\n        a()\n"
    lines = [mutant.lines for mutant in mutants_of(ast.parse(source), "m")]
    assert set(lines[:-1]) == {range(2, 6)}
    assert lines[-1] == range(6, 7)


def loaded(tmp_path: Path) -> tuple[ModuleType, ast.Module]:
    path = tmp_path / "a_module.py"
    path.write_text(SOURCE)
    module = ModuleType("a_module")
    module.__file__ = str(path)
    exec(compile(SOURCE, str(path), "exec"), vars(module))
    return module, ast.parse(SOURCE)


def found(tree: ast.Module, scope: str, now: str) -> Mutant:
    return next(mutant for mutant in mutants_of(tree, "a_module") if mutant.scope == scope and mutant.now == now)


def test_a_method_is_changed_in_place(tmp_path: Path) -> None:
    """What holds the function already has the fault too: nothing needs to be imported again."""
    module, tree = loaded(tmp_path)
    box = module.Box([1, 2, 3, 4])
    add = box.add
    plant(found(tree, "Box.add", "len(self.items) <= LIMIT"), tree, module)
    assert add(5)
    assert not box.add(6)


def test_a_property_is_changed_in_place(tmp_path: Path) -> None:
    """As is whatever else a class wraps a function in."""
    module, tree = loaded(tmp_path)
    plant(found(tree, "Box.first", "1"), tree, module)
    assert module.Box([1, 2]).first == 2


def test_a_function_loses_a_statement(tmp_path: Path) -> None:
    """`continue` left out: the thirteen counts."""
    module, tree = loaded(tmp_path)
    assert module.total(module.Box([13, 1])) == 1
    plant(found(tree, "total", "pass"), tree, module)
    assert module.total(module.Box([13, 1])) == 14


def test_a_constant_is_rebound_where_it_was_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the modules that may see the fault, tests included; a class's constant is its attribute."""
    module, tree = loaded(tmp_path)
    other = ModuleType("a_module_that_imports")
    other.LIMIT = module.LIMIT  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, other.__name__, other)
    plant(found(tree, "", "5"), tree, module, also=("a_module",))
    assert (module.LIMIT, other.LIMIT) == (5, 5)
    plant(found(tree, "Box", "True"), tree, module)
    assert module.Box([]).full


def test_what_is_not_there_cannot_be_planted(tmp_path: Path) -> None:
    """The module must be the one whose text was read."""
    module, tree = loaded(tmp_path)
    mutant = found(tree, "total", "pass")
    del module.total
    with pytest.raises(CannotPlant, match="total"):
        plant(mutant, tree, module)
