"""Parsed documents on disk: the same bytes are parsed once per version of the parsers.

Failures are not stored: the next run tries again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.disk.download import replacing
from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.parsing import PARSERS
from features.documents.extraction.documents.process.document_reader import DocumentReader
from features.documents.extraction.errors import DocumentError
from jobs.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A file and the result of parsing it."""

    name: str
    sha256: str
    error: dict[str, Any] | None = None
    """Code, message and page of the error, if it could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseCache:
    """Parsed documents by digest, in a folder per version of the parsers."""

    root: Path

    @classmethod
    def below(cls, data_dir: Path) -> ParseCache:
        version = hashlib.sha256(PARSERS.encode()).hexdigest()[:12]
        return cls(root=data_dir.expanduser().absolute() / "documents" / version)

    @property
    def version(self) -> str:
        """Return a digest of the versions of the parsers."""
        return self.root.name

    def path_of(self, sha256: str) -> Path:
        return self.root / sha256[:2] / f"{sha256}.doc"

    def load(self, sha256: str) -> Document:
        """Return a parsed document."""
        return Document.from_bytes(self.path_of(sha256).read_bytes())

    def store(self, sha256: str, stored: bytes) -> None:
        path = self.path_of(sha256)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(stored)


def prepare(files: Iterable[Path], cache: ParseCache, *, on_each: Callable[[], None]) -> Iterator[Prepared]:
    """Parse files one after the other; `on_each` runs after each. Raises InputError if one cannot be opened."""
    with DocumentReader() as reader:
        for path in files:
            yield _prepared(path, cache, reader)
            on_each()


def name_of(path: Path) -> str:
    """Return a file's path for JSON: bytes that are not UTF-8 as `\\xfc`."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _prepared(path: Path, cache: ParseCache, reader: DocumentReader) -> Prepared:
    content = _content(path)
    sha256 = hashlib.sha256(content).hexdigest()
    if not cache.path_of(sha256).exists():
        try:
            cache.store(sha256, reader.read_stored(content, path.name))
        except DocumentError as error:
            failure = {"code": str(error.code), "message": error.message, "page": error.page}
            return Prepared(name=name_of(path), sha256=sha256, error=failure)
    return Prepared(name=name_of(path), sha256=sha256)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}. Grant access, or leave the file out.") from None
