"""Plants a mutant in a process that has everything imported: the code of one function is replaced, or one constant."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tests.mutation.operators import Mutant


class CannotPlant(Exception):
    """The mutant can't take the place of what is there."""


def plant(mutant: Mutant, tree: ast.Module, module: ModuleType, *, also: tuple[str, ...] = ()) -> None:
    """Make `module` behave as `mutant` says. `tree` is the one that the mutant was found in.

    A constant is also rebound where modules have imported it whose names begin with one of `also`.
    """
    mutant.plant()
    if mutant.first_line:
        _replace_code(mutant, tree, module)
        return
    scope: Any = functools.reduce(getattr, filter(None, mutant.scope.split(".")), module)
    old = vars(scope).get(mutant.name)
    value = eval(compile(ast.Expression(_assigned(mutant, tree)), module.__file__ or "", "eval"), vars(module))
    try:
        setattr(scope, mutant.name, value)
    except AttributeError as error:  # a member of an enumeration
        raise CannotPlant(str(error)) from error
    if scope is module:
        for name, other in list(sys.modules.items()):
            if name.startswith(also) and vars(other).get(mutant.name) is old:
                setattr(other, mutant.name, value)


def _replace_code(mutant: Mutant, tree: ast.Module, module: ModuleType) -> None:
    compiled = compile(tree, module.__file__ or "", "exec", dont_inherit=True)
    for code in _codes(compiled):
        if code.co_qualname == mutant.scope and code.co_firstlineno == mutant.first_line:
            for function in functions(module):
                there = function.__code__
                if (there.co_qualname, there.co_firstlineno) == (code.co_qualname, code.co_firstlineno):
                    try:
                        function.__code__ = code
                    except ValueError as error:  # it has lost its last use of `super()`
                        raise CannotPlant(str(error)) from error
                    return
    raise CannotPlant(f"no function {mutant.scope} in {module.__name__}")


def functions(module: ModuleType) -> Iterator[FunctionType]:
    """All functions that a module defines, methods and properties too."""
    for value in vars(module).values():
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield from _functions_of(value, module)
        elif isinstance(value, FunctionType) and value.__module__ == module.__name__:
            yield value


def _functions_of(cls: type, module: ModuleType) -> Iterator[FunctionType]:
    for value in vars(cls).values():
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield from _functions_of(value, module)
            continue
        for name in ("", "__func__", "fget", "func"):  # itself, or what a class or static method or property wraps
            part = getattr(value, name, None) if name else value
            if isinstance(part, FunctionType):
                yield part


def _codes(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _codes(const)


def _assigned(mutant: Mutant, tree: ast.Module) -> ast.expr:
    body: list[ast.stmt] = tree.body
    for name in filter(None, mutant.scope.split(".")):
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == name)
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.lineno == mutant.lines.start and node.value:
            return node.value
    raise CannotPlant(f"nothing is assigned to {mutant.name} in {mutant.scope or 'the module'}")
