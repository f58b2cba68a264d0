"""The domain's errors that a function may raise, according to its source: from what it creates, calls and depends on.

Names are followed through imports of `api`, `features` and `jobs`; for a class that is created, or named in a call,
every method counts. Methods of a function's arguments are not followed.
"""

from __future__ import annotations

import ast
import importlib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jobs.errors import TokenmillError

ROOT = Path(__file__).resolve().parents[2]
Errors = frozenset[type[TokenmillError]]


class Name(NamedTuple):
    module: str
    name: str
    """Empty: the module itself."""


class Module:
    """The definitions at the top of a file, and all its imports."""

    def __init__(self, path: Path) -> None:
        self.imports: dict[str, Name] = {}
        self.defined: dict[str, ast.stmt] = {}
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                self.imports |= {each.asname or each.name: Name(node.module, each.name) for each in node.names}
        for statement in tree.body:
            self.defined |= dict.fromkeys(_defined_by(statement), statement)


def _defined_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


@cache
def _module(name: str) -> Module | None:
    if name.partition(".")[0] not in ("api", "features", "jobs", "tokenmill"):
        return None
    path = ROOT.joinpath(*name.split("."))
    file = next((found for found in (path.with_suffix(".py"), path / "__init__.py") if found.exists()), None)
    return None if file is None else Module(file)


def _followed(name: Name) -> Name | None:
    """Return where an imported name is defined, or None if that is not ours."""
    if _module(f"{name.module}.{name.name}") is not None:
        return Name(f"{name.module}.{name.name}", "")
    module = _module(name.module)
    if module is None:
        return None
    if name.name in module.defined:
        return name
    return _followed(module.imports[name.name]) if name.name in module.imports else None


def _resolved(node: ast.expr, within: str) -> Name | None:
    """Return the name for an expression in a module; for a class's attribute the class."""
    if isinstance(node, ast.Name):
        return _followed(Name(within, node.id))
    if not isinstance(node, ast.Attribute) or (owner := _resolved(node.value, within)) is None:
        return None
    return _followed(Name(owner.module, node.attr)) if not owner.name else owner if _is_class(owner) else None


def _is_class(name: Name) -> bool:
    module = _module(name.module)
    return module is not None and isinstance(module.defined.get(name.name), ast.ClassDef)


def _error_of(node: ast.expr, within: str) -> type[TokenmillError] | None:
    name = _resolved(node, within)
    found = getattr(importlib.import_module(name.module), name.name, None) if name and _is_class(name) else None
    return found if isinstance(found, type) and issubclass(found, TokenmillError) else None


class _Reader(ast.NodeVisitor):
    """Collects the errors that a piece of code creates and the names it uses, with the errors caught there."""

    def __init__(self, module: str) -> None:
        self.made: set[type[TokenmillError]] = set()
        self.used: set[tuple[Name, Errors]] = set()
        self._module, self._caught = module, Errors()

    def visit_Try(self, node: ast.Try) -> None:
        caught = [kind for handler in node.handlers if not _raises_again(handler) for kind in _kinds(handler.type)]
        self._visit_within(node.body, caught)
        for each in (*node.handlers, *node.orelse, *node.finalbody):
            self.visit(each)

    def visit_With(self, node: ast.With) -> None:
        calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
        caught = [kind for call in calls if ast.unparse(call.func) == "suppress" for kind in call.args]
        for item in node.items:
            self.visit(item)
        self._visit_within(node.body, caught)

    def visit_Call(self, node: ast.Call) -> None:
        error = _error_of(node.func, self._module)
        if error is not None and not issubclass(error, tuple(self._caught)):
            self.made.add(error)
        elif (name := _resolved(node.func, self._module)) is not None and _is_class(name):
            self.used.add((name, self._caught))
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self._use(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._use(node)
        self.visit(node.value)

    def _use(self, node: ast.expr) -> None:
        name = _resolved(node, self._module)
        if name is not None and name.name and not _is_class(name):  # a class alone is a type
            self.used.add((name, self._caught))

    def _visit_within(self, body: list[ast.stmt], caught: list[ast.expr]) -> None:
        before = self._caught
        self._caught |= {error for kind in caught if (error := _error_of(kind, self._module)) is not None}
        for each in body:
            self.visit(each)
        self._caught = before


def _kinds(caught: ast.expr | None) -> list[ast.expr]:
    return [] if caught is None else caught.elts if isinstance(caught, ast.Tuple) else [caught]


def _raises_again(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) and node.exc is None for node in ast.walk(handler))


@cache
def _read(name: Name) -> _Reader:
    reader, module = _Reader(name.module), _module(name.module)
    if module is not None and name.name in module.defined:
        reader.visit(module.defined[name.name])
    return reader


def raised_by(*begun: Name) -> set[type[TokenmillError]]:
    """Return the errors that may leave any of these functions."""
    users: dict[Name, set[tuple[Name, Errors]]] = defaultdict(set)
    raised: dict[Name, set[type[TokenmillError]]] = {}
    unread = list(begun)
    while unread:
        if (name := unread.pop()) in raised:
            continue
        raised[name] = set(_read(name).made)
        for used, caught in _read(name).used:
            users[used].add((name, caught))
            unread.append(used)
    changed = list(raised)
    while changed:
        name = changed.pop()
        for user, caught in users[name]:
            new = {error for error in raised[name] if not issubclass(error, tuple(caught))} - raised[user]
            if new:
                raised[user] |= new
                changed.append(user)
    return set().union(*(raised[name] for name in begun))
