"""Reads documents on this machine, for what a service cannot be asked: a dry run, and examples of no collection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.process.document_reader import DocumentReader
from features.documents.extraction.errors import DocumentError
from jobs.errors import InputError


def read_documents(paths: Iterable[Path]) -> Iterator[Document | DocumentError]:
    """Yield each file as a document, or why it cannot be read. Raises InputError if one cannot be opened."""
    with DocumentReader() as reader:
        for path in paths:
            try:
                yield reader.read(_content(path), path.name)
            except DocumentError as error:
                yield error


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}. Grant access, or leave the file out.") from None
