"""The documents of a command line, from files, folders and globs: each once, in a fixed order."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from features.pipelines.rows.sources.files import reads
from jobs.errors import InputError


def documents_of(names: Sequence[str]) -> list[Path]:
    """Return the files, those of a folder recursively and sorted by name. Raises InputError."""
    files = list(dict.fromkeys(path for name in names for path in _files_of(name)))
    if not files:
        raise InputError("no document was given. Name files, folders or quoted globs such as 'in/**/*.pdf'.")
    return files


def require_outside(outputs: Sequence[Path], names: Sequence[str]) -> None:
    """Raise InputError if an output would be a document of a folder or glob at the next start."""
    for path in outputs:
        for name in names:
            if _would_have(name, path):
                raise InputError(
                    f"the output {path} would be a document of {name} at the next start. Choose a path outside "
                    "it, or a name that begins with '_'."
                )


def _would_have(name: str, output: Path) -> bool:
    folder = Path(name)
    if not folder.is_dir():
        return glob.has_magic(name) and not folder.exists() and reads(name, output)
    target = output.parent.resolve() / output.name
    return target.is_relative_to(folder.resolve()) and _is_shown(target.relative_to(folder.resolve()))


def _files_of(name: str) -> Iterable[Path]:
    path = Path(name)
    if path.is_file():
        return [path]
    if path.is_dir():
        return _filled(name, _of_folder(path), "the folder has no file; names that begin with '.' or '_' are left out")
    if glob.has_magic(name):
        paths = (Path(match) for match in sorted(glob.glob(name, recursive=True)))
        return _filled(name, (one for one in paths if one.is_file()), "no file matches it")
    raise InputError(f"{name}: no such file or folder. Give the path of a document, a folder or a quoted glob.")


def _of_folder(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and _is_shown(path.relative_to(folder)):
            yield path


def _is_shown(path: Path) -> bool:
    return not any(part.startswith((".", "_")) for part in path.parts)


def _filled(name: str, paths: Iterable[Path], problem: str) -> list[Path]:
    files = list(paths)
    if not files:
        raise InputError(f"{name}: {problem}.")
    return files
