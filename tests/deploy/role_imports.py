"""What each role imports, read from the code: late imports, features' parts and modules of child processes included."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache

from features import FEATURES
from tests.floors import OURS
from tests.sources import file_of, names_in

MODULES = {
    "api": ("api.app", "api.server"),
    "control": ("workers.control",),
    "dispatch": ("workers.dispatcher",),
    "prepare": ("workers.preparing.main",),
    "worker": ("workers.gpu_main",),
}
"""What `cli.roles` loads for each role."""
_PARTS = {
    "api": ("routers", "services", "pages", "counts", "bodies", "lines"),
    "control": ("control", "recipes", "purges", "meters", "counts"),
    "prepare": ("meters",),
}
_PARTS_OF_ALL = ("settings", "tables", "on_event", "stored_bytes", "on_tenant_end")
_NOT_OF_ROLES = ("cli", "tokenmill.mapping", "tokenmill.tables", "tokenmill.engine", "tokenmill.arrow_scalars")
"""Commands and the client's functions, which `import tokenmill` names but no role calls; values of pyarrow, which exist
only where pyarrow does."""


def libraries_of_role(role: str) -> dict[str, str]:
    """Return the top-level names of other people's packages that a role may import, each with a module that does."""
    found: dict[str, str] = {}
    seen, waiting = set[str](), [*MODULES[role], *_parts_of(role)]
    while waiting:
        module = waiting.pop()
        if module in seen or module.partition(".")[0] not in OURS or _is_below(module, _NOT_OF_ROLES):
            continue
        seen.add(module)
        for name in imports_in(module):
            top = name.partition(".")[0]
            if top in OURS:
                waiting.append(name)
            elif top not in sys.stdlib_module_names:
                found.setdefault(top, module)
    return found


@cache
def imports_in(module: str) -> frozenset[str]:
    """Return all names that one of our modules may import, with its parent packages; none if there is no such file."""
    path = file_of(module)
    if path is None:
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {inner for node in ast.walk(tree) if _is_for_types(node) for inner in ast.walk(node)}
    names = {name for node in ast.walk(tree) if node not in for_types for name in _names_of(node)}
    parts = module.split(".")
    return frozenset(names | {".".join(parts[:length]) for length in range(1, len(parts))})


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _names_of(node: ast.AST) -> Iterator[str]:
    yield from names_in(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "needed":
        yield from (str(each.value) for each in node.args if isinstance(each, ast.Constant))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_module_of_a_child(node.value):
        yield node.value


def _is_module_of_a_child(text: str) -> bool:
    """Return whether a text names one of our modules, as for `command_of`."""
    return text.partition(".")[0] in OURS and "." in text and text.isascii() and file_of(text) is not None


def _parts_of(role: str) -> Iterator[str]:
    for feature in FEATURES:
        for kind in (*_PARTS.get(role, ()), *_PARTS_OF_ALL):
            value = getattr(feature, kind) or ()
            parts = value.values() if isinstance(value, Mapping) else [value] if isinstance(value, str) else value
            yield from (part.partition(":")[0] for part in parts)


def _is_below(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
