"""The documents that a command line names: files, folders and globs, each once and in a fixed order. Reads none."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from features.pipelines.rows.sources.files import reads
from jobs.errors import InputError


def documents_of(given: Sequence[str]) -> list[Path]:
    """Return the files: those of a folder in the order of their names, folders in it too. Raises InputError."""
    found = list(dict.fromkeys(path for one in given for path in _files_of(one)))
    if not found:
        raise InputError("no document was given. Name files, folders or quoted globs such as 'in/**/*.pdf'.")
    return found


def require_outside(outputs: Sequence[Path], given: Sequence[str]) -> None:
    """Raise InputError where an output would be a document of a folder or glob at the next start."""
    for path in outputs:
        for one in given:
            if _would_have(one, path):
                raise InputError(
                    f"the output {path} would be a document of {one} from the next start on. Choose a path outside "
                    "it, or a name that begins with '_'."
                )


def _would_have(given: str, output: Path) -> bool:
    folder = Path(given)
    if not folder.is_dir():
        return glob.has_magic(given) and not folder.exists() and reads(given, output)
    target = output.parent.resolve() / output.name
    return target.is_relative_to(folder.resolve()) and _is_shown(target.relative_to(folder.resolve()))


def _files_of(given: str) -> Iterable[Path]:
    path = Path(given)
    if path.is_file():
        return [path]
    if path.is_dir():
        return _filled(given, _of_folder(path), "the folder has no file; names that begin with '.' or '_' are left out")
    if glob.has_magic(given):
        paths = (Path(name) for name in sorted(glob.glob(given, recursive=True)))
        return _filled(given, (one for one in paths if one.is_file()), "no file fits it")
    raise InputError(f"{given}: no such file or folder. Give the path of a document, a folder or a quoted glob.")


def _of_folder(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and _is_shown(path.relative_to(folder)):
            yield path


def _is_shown(path: Path) -> bool:
    return not any(part.startswith((".", "_")) for part in path.parts)


def _filled(given: str, paths: Iterable[Path], otherwise: str) -> list[Path]:
    found = list(paths)
    if not found:
        raise InputError(f"{given}: {otherwise}.")
    return found
