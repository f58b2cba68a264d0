"""Snapshot of an extraction's documents when it began: an object with one line per document, in order.

The collection may change during the extraction; the results are for these documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from features.documents.extraction.course.corpus import Corpus
from features.documents.tables import CollectionDocument
from jobs.lines.document_bodies import PREPARE_MODEL, READ_ENDPOINT
from jobs.lines.reading import iter_lines
from jobs.settings import MIB
from jobs.storage import Storage

_MAX_LINE_BYTES = MIB  # names and keys are far shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptDocument:
    """A document and the location of its bytes; or an index asked as a document, which has no location."""

    id: str
    name: str
    file_id: str | None
    store: str | None
    key: str | None
    etag: str | None

    @classmethod
    def of(cls, row: CollectionDocument) -> KeptDocument:
        return cls(id=row.id, name=row.name, file_id=row.file_id, store=row.store, key=row.key, etag=row.version)

    @classmethod
    def of_index(cls, corpus: Corpus) -> KeptDocument:
        return cls(id=corpus.index_id, name=corpus.name, file_id=None, store=None, key=None, etag=None)

    @property
    def is_index(self) -> bool:
        return self.file_id is None and self.store is None

    def to_json(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    def read_line(self, number: int) -> bytes:
        """Return the line that reads the document, without a newline."""
        source = {name: value for name, value in asdict(self).items() if name != "id" and value is not None}
        body: dict[str, Any] = {"model": PREPARE_MODEL, **source}
        line = {"custom_id": custom_id(number), "method": "POST", "url": READ_ENDPOINT, "body": body}
        return orjson.dumps(line)


def custom_id(number: int) -> str:
    """Return the custom id of lines about a document as a whole; numbers count from 0."""
    return f"document-{number}"


def encoded(documents: Iterable[KeptDocument]) -> Iterator[bytes]:
    """Yield the content of the snapshot, a line at a time."""
    for document in documents:
        yield orjson.dumps(asdict(document)) + b"\n"


def kept_documents(storage: Storage, key: str) -> Iterator[tuple[int, KeptDocument]]:
    """Yield the documents with their numbers. Raises NotFoundError if the store has lost the snapshot."""
    lines = iter_lines(storage.iter_chunks(key), max_line_bytes=_MAX_LINE_BYTES)
    for number, line in enumerate(lines):
        assert line.content is not None, "lines are shorter"
        yield number, KeptDocument(**orjson.loads(line.content))
