"""Import our packages into a user's own process, under the names by which they import each other.

`sys.path` is unchanged, so that the process finds its own packages under all other names (docs/adr/0046).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from tokenmill.processes import PACKAGES


class _Finder(MetaPathFinder):
    """Finds some of our packages and nothing else."""

    names: frozenset[str] = frozenset()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [PACKAGES]) if name in self.names else None


_finder = _Finder()


def make_importable(*names: str) -> None:
    """Make our packages importable in this process. Raises ImportError where it has others with the same names."""
    for name in names:
        _require_no_other(name)
    _finder.names = _finder.names.union(names)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _require_no_other(name: str) -> None:
    place = _place_of(name)
    if place is not None and Path(place).resolve().parent.parent != Path(PACKAGES).resolve():
        raise ImportError(
            f"this process has another package {name!r}, {place}, whose place tokenmill's would take. Rename it, or "
            "import this in a process that does not find it.",
            name=name,
            path=place,
        )


def _place_of(name: str) -> str | None:
    """Return the file of a package that is or would be loaded; None where there is none, or a folder without code."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None) or "made at runtime"
    spec = find_spec(name)
    if spec is None or spec.origin is not None:
        return None if spec is None else spec.origin
    folders = spec.submodule_search_locations or ()  # of a package without an __init__
    return next((str(path) for folder in folders for path in sorted(Path(folder).glob("*.py"))), None)
