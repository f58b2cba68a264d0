"""Our modules as sources: their files, and what they import."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Import(NamedTuple):
    """An import statement with absolute names: for `from a import b`, both `a` and `a.b`."""

    names: tuple[str, ...]
    line: int
    is_at_top: bool
    """Whether it stands directly in the module."""
    is_late: bool
    """Whether it stands in a function."""


@cache  # each of our files is asked for by several tests, and reading one takes milliseconds
def imports_in(path: Path) -> tuple[Import, ...]:
    """Return the import statements of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return tuple(_imports(tree.body, is_at_top=True, is_late=False))


def _imports(statements: Iterable[ast.AST], *, is_at_top: bool, is_late: bool) -> Iterator[Import]:
    """Yield the imports among statements, and of those inside them; no expression has one."""
    for node in statements:
        if names := tuple(names_in(node)):
            yield Import(names, getattr(node, "lineno", 0), is_at_top, is_late)
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _imports(getattr(node, field, ()), is_at_top=False, is_late=is_late or is_function)


def names_in(node: ast.AST) -> Iterator[str]:
    """Yield the full names that an import names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_of(module: str) -> Path | None:
    """Return the file of one of our modules."""
    place = ROOT.joinpath(*module.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)
