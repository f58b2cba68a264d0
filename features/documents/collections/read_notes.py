"""Stores the result of reading each document in its row, for extractions and indexes alike."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from features.documents.collections import documents
from features.documents.progress import DocumentProgress
from flows.reasons import storable
from jobs.claims.work import ClaimedWork

_NOTED_AT_ONCE = 500


def note_read(work: ClaimedWork[Any], progress: Iterable[DocumentProgress]) -> None:
    """Store the results of reading under a claim, in blocks of documents; idempotent."""
    results = ((one.document.id, _as_columns(one)) for one in progress if one.read is not None)
    while block := list(islice(results, _NOTED_AT_ONCE)):
        with work.writing() as (session, _row):
            documents.note_read(session, block)


def _as_columns(one: DocumentProgress) -> dict[str, Any]:
    """Return the column values for the result of reading a document."""
    assert one.read is not None, "it was read, or tried to be"
    names = ("sha256", "object_key", "num_pages", "num_characters")
    if one.read.error is not None:
        error = one.read.error
        # The message may quote text from the document.
        return dict.fromkeys(names) | {"error": {**error, "message": storable(error["message"])}}
    return {name: one.read.body[name] for name in names} | {"error": None}
