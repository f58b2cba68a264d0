"""The files that a Python module depends on: its imports of ours, their imports, and the data files that they name.

Includes a file too many rather than one too few: a text that spells a module or a path of ours counts as its use. Uses
only the standard library, since this also runs where only torch and pytest are installed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_NAME = re.compile(r"\w[\w.-]{0,99}")
_NO_DATA = {".py", ".md"}
"""Suffixes of files beside modules that are never read except by a name, which is detected."""
_PATH = re.compile(r"\w[\w./-]{0,199}")


@dataclass(frozen=True)
class Tree:
    """A folder with packages; each module is read once."""

    root: Path

    @cached_property
    def packages(self) -> frozenset[str]:
        """The names of the folders that contain modules."""
        return frozenset(path.parent.name for path in self.root.glob("*/*.py")) | self._namespaces()

    def _namespaces(self) -> frozenset[str]:
        return frozenset(path.parent.parent.name for path in self.root.glob("*/*/*.py"))

    @cached_property
    def _uses(self) -> dict[Path, frozenset[Path]]:
        return {}

    def closure(self, start: Path, *, unfollowed: frozenset[Path] = frozenset()) -> frozenset[Path]:
        """Return every file that `start` depends on, including itself, but not through modules in `unfollowed`."""
        found, waiting = {start}, [start]
        while waiting:
            path = waiting.pop()
            if path.suffix == ".py" and path not in unfollowed:
                new = self.uses(path) - found
                found |= new
                waiting += new
        return frozenset(found)

    def uses(self, path: Path) -> frozenset[Path]:
        """Return the files that a module imports or names, and the files beside it that are not Python."""
        if path not in self._uses:
            node = ast.parse(path.read_bytes())
            self._uses[path] = frozenset((*self._named_in(node, path.parent), *_neighbours(path.parent)))
        return self._uses[path]

    def _named_in(self, tree: ast.AST, folder: Path) -> Iterator[Path]:
        nodes = list(ast.walk(tree))
        inner = {id(node.left) for node in nodes if isinstance(node, ast.BinOp)}
        prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._module(alias.name)
            elif isinstance(node, ast.ImportFrom):
                yield from self._from(node, folder)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                yield from self._text(node.value, folder)
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and id(node) not in inner:
                yield from self._text("/".join(_parts(node)), folder)

    def _from(self, node: ast.ImportFrom, folder: Path) -> Iterator[Path]:
        base = folder if node.level else self.root
        for _ in range(node.level - 1):
            base = base.parent
        prefix = ".".join((*base.relative_to(self.root).parts, *(node.module or "").split("."))).strip(".")
        for alias in node.names:
            yield from self._module(f"{prefix}.{alias.name}")

    def _module(self, name: str) -> Iterator[Path]:
        """Yield the files that are run when a name is imported; for a name inside a module, the module's."""
        parts = name.split(".")
        if parts[0] not in self.packages:
            return
        for length in range(1, len(parts) + 1):
            place = self.root.joinpath(*parts[:length])
            yield from (path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file())

    def _text(self, text: str, folder: Path) -> Iterator[Path]:
        for match in _DOTTED.finditer(text):
            named = list(self._module(match[0]))
            yield from named if any(path.stem != "__init__" for path in named) else ()
        if "import" in text:
            yield from self._code(text, folder)
        if "/" in text:
            yield from self._path(text)
        elif _NAME.fullmatch(text):
            yield from (path for path in (self.root / text, folder / text) if path.is_file())

    def _path(self, text: str) -> Iterator[Path]:
        """Yield the file of a path below the root, or all files if it is a folder."""
        if _PATH.fullmatch(text):
            yield from _files(self.root / text)

    def _code(self, text: str, folder: Path) -> Iterator[Path]:
        """Yield the imports of a text that is a program itself, such as one for `python -c`."""
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return
        yield from self._named_in(tree, folder)


def _parts(node: ast.AST) -> list[str]:
    """Return the texts of `ROOT / "a" / "b"`, in order."""
    if isinstance(node, ast.BinOp):
        return [*_parts(node.left), *_parts(node.right)]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def _files(place: Path) -> Iterator[Path]:
    """Yield a file, or all files below a folder."""
    if place.is_file():
        yield place
    elif place.is_dir():
        yield from (path for path in place.rglob("*") if path.is_file() and _is_ours(path))


def _neighbours(folder: Path) -> Iterator[Path]:
    yield from (path for path in folder.iterdir() if path.is_file() and path.suffix not in _NO_DATA and _is_ours(path))


def _is_ours(path: Path) -> bool:
    """Return whether a file is written by people and not by programs."""
    return "__pycache__" not in path.parts and not any(part.startswith(".") for part in path.parts[-2:])
