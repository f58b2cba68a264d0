"""The files of a source in name order: a file, a glob, a folder, or the objects below a store's prefix.

It opens files but does not parse them.
"""

from __future__ import annotations

import glob
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from jobs.errors import InputError, ServiceError
from tokenmill.packages import needed

_STORES = ("s3", "s3a", "gs", "az", "file")
_MAGIC = re.compile(r"[*?\[]")
_SET = re.compile(r"\[[^\]!]+\]")
_BUFFER_BYTES = 1 << 20


class Format(StrEnum):
    """The format of a file; the value is its suffix."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


_SUFFIXES = {
    "jsonl": Format.JSONL,
    "ndjson": Format.JSONL,
    "csv": Format.CSV,
    "tsv": Format.CSV,
    "parquet": Format.PARQUET,
}
ALLOWED = "a name that ends in .jsonl, .csv, .tsv or .parquet (all but the last also packed: .gz)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file or object; `open` returns its bytes and may be called repeatedly."""

    name: str
    format: Format
    open: Callable[[], BinaryIO]
    identity: Callable[[], str]
    may_guess: bool = False
    """Whether an encoding may be guessed, as whoever reads the file is shown the source's notes."""


def format_of(name: str) -> Format | None:
    """Return the format of a name's suffix; None if it is not a table."""
    stem, _, last = name.lower().rpartition(".")
    is_packed = last == "gz"
    form = _SUFFIXES.get(stem.rpartition(".")[2] if is_packed else last)
    return None if is_packed and form is Format.PARQUET else form


def files_of(spec: str) -> list[SourceFile]:
    """Return the files of a path, a glob, a folder or a store's URL. Raise InputError if there are none."""
    scheme, separator, _ = spec.partition("://")
    if separator and scheme not in _STORES:
        raise InputError(f"cannot read {spec}: {scheme}:// is not a store. Allowed are: {', '.join(_STORES)}.")
    files = _store_files(spec) if separator else _local_files(spec)
    formats = sorted({file.format.value for file in files})
    if len(formats) > 1:
        raise InputError(
            f"{spec} has files of several kinds: {', '.join(formats)}. Choose one, such as */*.{formats[0]}."
        )
    return files


def reads(spec: str, path: Path) -> bool:
    """Tell whether a local file belongs to a source, or would if it existed."""
    scheme, separator, rest = spec.partition("://")
    if separator and scheme != "file":
        return False
    source = Path(rest if separator else spec).expanduser()
    targets = (path.resolve(), path.parent.resolve() / path.name)
    root = source.resolve()
    if root.is_dir():
        inside = (target.relative_to(root).parts for target in targets if target.is_relative_to(root))
        return any(parts and _is_table(parts) for parts in inside)
    if source.exists() or not _MAGIC.search(str(source)):
        return root in targets
    fits = re.compile(_pattern(str(root))).fullmatch
    return any(fits(str(target)) for target in targets)


def _local_files(spec: str) -> list[SourceFile]:
    path = Path(spec).expanduser()
    if path.is_dir():
        return _require(spec, sorted(found for found in path.rglob("*") if _is_table(found.relative_to(path).parts)))
    if path.exists() or not _MAGIC.search(spec):
        if format_of(path.name) is None:
            array = " A JSON array becomes one by jq -c '.[]' IN.json > OUT.jsonl." if path.suffix == ".json" else ""
            raise InputError(f"cannot tell the format of {spec}. Give {ALLOWED}.{array}")
        if not path.exists():
            raise InputError(f"cannot read {spec}: there is no such file. Give a file, a folder, a glob or a URL.")
        return [_local(path)]
    found = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
    return _require(spec, [one for one in found if one.is_file() and format_of(one.name) is not None])


def _require(spec: str, paths: list[Path]) -> list[SourceFile]:
    files = [_local(path) for path in paths if path.is_file()]
    if not files:
        raise InputError(f"there is no table at {spec}. Tables have {ALLOWED}.")
    return files


def _is_table(parts: tuple[str, ...]) -> bool:
    """Tell whether a path is a table; files that writers put beside tables, such as `_SUCCESS`, are not."""
    return not any(part.startswith(("_", ".")) for part in parts) and format_of(parts[-1]) is not None


def _local(path: Path) -> SourceFile:
    form = format_of(path.name)
    assert form is not None
    return SourceFile(
        name=str(path),
        format=form,
        open=lambda: _opened(path),
        identity=lambda: _digest(path),
        may_guess=True,
    )


def _opened(path: Path) -> BinaryIO:
    with readable(str(path)):
        return path.open("rb")


def _digest(path: Path) -> str:
    with readable(str(path)), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn the errors of reading a file or a store into one sentence."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"cannot read {name}: it is not there. Put it back, and run the same again.") from None
    except PermissionError:
        raise InputError(f"cannot read {name}: permission denied. Permit it, or give another source.") from None
    except OSError as error:
        raise ServiceError(f"cannot read {name}: {error.strerror or error}. Run the same again later.") from None


def _store_files(spec: str) -> list[SourceFile]:
    obstore = needed("obstore", by=f"reading {spec.partition('://')[0]}://")
    root, path = _split(spec)
    with _answers(obstore, spec):
        store = needed("obstore.store", by=spec).from_url(root)
        files = [_stored(obstore, store, root, entry) for entry in _listed(obstore, store, path)]
    if not files:
        raise InputError(f"there is no table at {spec}. Tables have {ALLOWED}.")
    return sorted(files, key=lambda file: file.name)


def _split(spec: str) -> tuple[str, str]:
    """Split a URL into its store and a path within it, which may be a glob."""
    scheme, _, rest = spec.partition("://")
    if scheme == "file":
        return "file:///", rest.strip("/") + ("/" if rest.endswith("/") else "")
    bucket, _, path = rest.partition("/")
    if not bucket:
        raise InputError(f"{spec} names no bucket. Give a URL such as {scheme}://bucket/folder/*.parquet.")
    return f"{scheme}://{bucket}", path


def _listed(obstore: Any, store: Any, path: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a path: the object itself, those that match a glob, or the tables below it."""
    if path and not _MAGIC.search(path) and not path.endswith("/") and format_of(path) is not None:
        yield obstore.head(store, path)
        return
    fixed = path[: match.start()] if (match := _MAGIC.search(path)) else path
    below = fixed.rpartition("/")[0] if match else path.strip("/")
    fits = re.compile(_pattern(path)).fullmatch if match else None
    for page in obstore.list(store, prefix=below or None):
        for entry in page:
            inside = PurePosixPath(entry["path"]).relative_to(below or ".").parts
            if (fits(entry["path"]) if fits else True) and _is_table(inside):
                yield entry


def _pattern(path: str) -> str:
    """Return a glob as a regular expression: `*` within a folder, `**/` through any number of them."""
    signs = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*|\?|\[[^\]]+\])", path)
    return "".join(signs.get(part) or (part if _SET.fullmatch(part) else re.escape(part)) for part in parts)


def _stored(obstore: Any, store: Any, root: str, entry: dict[str, Any]) -> SourceFile:
    path = str(entry["path"])
    name = f"{root.rstrip('/')}/{path}"
    form = format_of(path)
    assert form is not None

    def opened() -> BinaryIO:
        with _answers(obstore, name):
            return cast(BinaryIO, io.BufferedReader(_StoredBytes(obstore, store, path, name), _BUFFER_BYTES))

    def identity() -> str:
        with _answers(obstore, name):
            now = obstore.head(store, path)
        return f"{now['e_tag'] or now['last_modified']} {now['size']}"

    return SourceFile(name=name, format=form, open=opened, identity=identity, may_guess=True)


class _StoredBytes(io.RawIOBase):
    """An object as a file of the standard library."""

    def __init__(self, obstore: Any, store: Any, path: str, name: str) -> None:
        self._obstore = obstore
        self._name = name
        self._reader = obstore.open_reader(store, path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        return int(self._reader.tell())

    def readinto(self, buffer: Any, /) -> int:
        with _answers(self._obstore, self._name):
            part = bytes(self._reader.read(len(buffer)))
        buffer[: len(part)] = part
        return len(part)


@contextmanager
def _answers(obstore: Any, name: str) -> Iterator[None]:
    """Turn a store's refusals and failures into one sentence."""
    refusals = (obstore.exceptions.PermissionDeniedError, obstore.exceptions.UnauthenticatedError)
    try:
        with readable(name):
            yield
    except refusals:
        raise InputError(
            f"the store refuses to read {name}. Check the credentials (such as AWS_ACCESS_KEY_ID) and their rights."
        ) from None
    except obstore.exceptions.BaseError as error:
        cause = str(error).strip().split("\n")[0]
        raise ServiceError(f"cannot read {name}: {cause}. Check the URL, and run the same again.") from None
