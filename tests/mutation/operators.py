"""Small faults that may be planted in a module: each changes one piece of its syntax tree.

What they change: comparisons, their boundaries, arithmetic, `and` and `or` (swapped, or a condition left out), `not`,
conditions, numbers, `min` and `max`, returned values, `break` and `continue`, whole statements. Not what tells nothing
about behaviour: texts, annotations, asserts, `__slots__`, and what only type checkers see.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}

Site = tuple[ast.AST, str, int | None]
"""Where a node hangs: its parent, the field, and the index in it if that is a list."""


@dataclass(frozen=True, eq=False)
class Mutant:
    """One fault. `plant` writes it into the tree, for good: whoever plants it does so in a process of its own."""

    module: str
    scope: str  # qualified name of the function or class; "" for the module
    lines: range  # of the statement, or of its head: a test that runs none of them can't notice
    was: str
    now: str
    site: Site
    replacement: ast.AST
    column: int
    first_line: int = 0  # of the function, decorators included, as its code object has it
    name: str = ""  # the module's or class's attribute that it is about, outside of functions

    def plant(self) -> None:
        parent, where, index = self.site
        if index is None:
            setattr(parent, where, self.replacement)
        else:
            getattr(parent, where)[index] = self.replacement

    def __str__(self) -> str:
        return f"{self.module}:{self.lines.start}:{self.column} {self.scope}: `{self.was}` → `{self.now}`"


def mutants_of(tree: ast.Module, module: str) -> list[Mutant]:
    """All faults of a module, in the order of its text."""
    return list(_block(tree, "body", _Place(module)))


@dataclass(frozen=True)
class _Place:
    """Where in a module a node is."""

    module: str
    scope: tuple[str, ...] = ()
    first_line: int = 0
    name: str = ""
    lines: range = range(0)

    def mutant(self, node: ast.AST, replacement: ast.AST, site: Site) -> Mutant:
        fixed = ast.fix_missing_locations(ast.copy_location(replacement, node))
        was, now = _texts(node, fixed)
        column: int = getattr(node, "col_offset", 0)
        scope = ".".join(self.scope)
        return Mutant(self.module, scope, self.lines, was, now, site, fixed, column, self.first_line, self.name)


def _block(parent: ast.AST, field: str, place: _Place) -> Iterator[Mutant]:
    """The faults of a list of statements."""
    for index, node in enumerate(getattr(parent, field)):
        if isinstance(node, ast.ClassDef):
            yield from _block(node, "body", replace(place, scope=(*place.scope, node.name)))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not place.first_line:  # else its code is part of the outer function's
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                inner = replace(place, scope=(*place.scope, node.name), first_line=first)
            yield from _block(node, "body", place if place.first_line else inner)
        elif place.first_line:
            yield from _statement(node, (parent, field, index), replace(place, lines=_head(node)))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and not target.id.startswith("__"):
                constant = replace(place, name=target.id, lines=_head(node))
                yield from _expression(node.value, (node, "value", None), constant)


def _statement(node: ast.stmt, site: Site, place: _Place) -> Iterator[Mutant]:
    """The faults of a statement in a function."""
    if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom):
        return
    for replacement in _statements(node):
        yield place.mutant(node, replacement, site)
    for field, value in ast.iter_fields(node):
        if field in ("body", "orelse", "finalbody"):
            yield from _block(node, field, place)
        elif field == "handlers":
            for handler in value:
                yield from _block(handler, "body", place)
        elif field not in ("annotation", "target", "targets"):
            yield from _parts(node, field, value, place)


def _parts(parent: ast.AST, field: str, value: object, place: _Place) -> Iterator[Mutant]:
    if isinstance(value, ast.AST):
        yield from _expression(value, (parent, field, None), place)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, ast.AST):
                yield from _expression(item, (parent, field, index), place)


def _expression(node: ast.AST, site: Site, place: _Place) -> Iterator[Mutant]:
    if isinstance(node, ast.JoinedStr):
        return  # a text for people
    for replacement in _replacements(node, condition=site[1] in ("test", "ifs")):
        yield place.mutant(node, replacement, site)
    for field, value in ast.iter_fields(node):
        yield from _parts(node, field, value, place)


def _texts(node: ast.AST, replacement: ast.AST) -> tuple[str, str]:
    """What was there and what is, as short as it can be said."""
    if isinstance(node, ast.BoolOp):
        values = replacement.values if isinstance(replacement, ast.BoolOp) else [replacement]
        left_out = [value for value in node.values if value not in values]
        if left_out:
            return " ".join(ast.unparse(left_out[0]).split()), "left out"
    was, now = (" ".join(ast.unparse(one).split()) for one in (node, replacement))
    return was, now


def _head(node: ast.stmt) -> range:
    """The lines of a statement without the statements in it."""
    body = getattr(node, "body", None)
    last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
    return range(node.lineno, max(last, node.lineno) + 1)


def _statements(node: ast.stmt) -> Iterator[ast.stmt]:
    match node:
        case ast.Expr(value=ast.Constant()):
            return  # a docstring
        case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Raise() | ast.Return(value=None):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript() | ast.Tuple(), *_]):
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()
            yield ast.Pass()
        case ast.Continue():
            yield ast.Break()
            yield ast.Pass()
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
    if isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
        yield ast.AugAssign(node.target, ARITHMETIC[type(node.op)](), node.value)


def _replacements(node: ast.AST, condition: bool) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(ops=[op], left=left, comparators=comparators):
            for other in COMPARISONS[type(op)]:
                yield ast.Compare(left, [other()], comparators)
        case ast.Compare(ops=ops, left=left, comparators=comparators):
            for index, op in enumerate(ops):
                for other in COMPARISONS[type(op)]:
                    yield ast.Compare(left, [*ops[:index], other(), *ops[index + 1 :]], comparators)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            yield ast.BinOp(left, ARITHMETIC[type(op)](), right)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for index in range(len(values)):
                rest = values[:index] + values[index + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.Constant(value=float() as value):
            yield ast.Constant(value * 2 or 1.0)
            if value:
                yield ast.Constant(value / 2)
        case ast.Call(func=ast.Name(id=name) as func) if name in FUNCTIONS:
            swapped = copy.copy(node)
            swapped.func = ast.copy_location(ast.Name(FUNCTIONS[name], ast.Load()), func)
            yield swapped
        case ast.Call(func=ast.Name(id="reversed"), args=[only]):
            yield only
    if condition and isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr | ast.Subscript):
        yield ast.UnaryOp(ast.Not(), node)
