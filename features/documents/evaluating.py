"""Compares an extraction's records with gold: a file of its owner, or people's decisions about its values.

`features.documents.extraction.evaluation` does the measuring. It runs within a request, so gold and memory are bounded:
only records of documents in the gold are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy.orm import Session

from features.documents import records
from features.documents.extraction.errors import ExtractionError
from features.documents.extraction.evaluation.evaluate import Evaluation, evaluate
from features.documents.extraction.evaluation.gold import read_gold_file
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.lifecycle import stored_plan
from features.documents.records import RecordsFile
from features.documents.tables import Extraction
from jobs import files
from jobs.errors import ConflictError, InputError, NotFoundError, TooLargeError
from jobs.lines.reading import iter_lines
from jobs.settings import MIB
from jobs.storage import Storage

MAX_GOLD_BYTES = 32 * MIB
MAX_RECORDS_BYTES = 1024 * MIB
MAX_COMPARED = 250_000
"""Maximum number of gold values, and of comparisons of values, including those that pair items of arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldSource:
    """The inputs of an evaluation."""

    extraction_id: str
    schema: FieldSchema
    records: RecordsFile
    gold_name: str | None
    """Name of the file; None for people's decisions."""
    gold_key: str | None


def find(session: Session, extraction: Extraction, gold_file_id: str | None) -> GoldSource:
    """Return the inputs. Raises ConflictError, GoneError, NotFoundError, TooLargeError."""
    file = records.records_file(session, extraction)
    if file.size_bytes > MAX_RECORDS_BYTES:
        raise TooLargeError(
            f"The records have {file.size_bytes:,} bytes, and {MAX_RECORDS_BYTES:,} are compared in a call. Download "
            "them, and use `tokenmill extract evaluate`."
        )
    gold = None if gold_file_id is None else files.get_file(session, extraction.tenant_id, gold_file_id)
    if gold is not None and gold.size_bytes > MAX_GOLD_BYTES:
        raise TooLargeError(
            f"The gold file has {gold.size_bytes:,} bytes, and {MAX_GOLD_BYTES:,} are allowed in a call. Download the "
            "records, and use `tokenmill extract evaluate`.",
            param="gold_file_id",
            code="file_too_large",
        )
    return GoldSource(
        extraction_id=extraction.id,
        schema=stored_plan(extraction).job().schema,
        records=file,
        gold_name=None if gold is None else gold.filename,
        gold_key=None if gold is None else gold.object_key,
    )


def read_file(storage: Storage, key: str) -> bytes:
    """Return the content of a gold file. Raises NotFoundError if the store has lost it."""
    try:
        return b"".join(storage.iter_chunks(key))
    except NotFoundError:
        raise NotFoundError("The content of the gold file is lost. Upload it again.", param="gold_file_id") from None


def measure(storage: Storage, source: GoldSource, content: bytes) -> Evaluation:
    """Compare records with lines of gold. Raises InputError naming the invalid line, or if no document matches.

    Raises ConflictError if nobody has decided anything yet, TooLargeError if people's decisions exceed MAX_COMPARED.
    """
    if source.gold_name is None and not content:
        raise ConflictError(
            f"Nobody has decided about a value of extraction {source.extraction_id!r} yet. Review some, or give the id "
            "of a gold file as gold_file_id.",
            code="nothing_decided",
        )
    name = source.gold_name or "the decisions"
    try:
        gold = read_gold_file(content, source.schema, spend=_at_most(MAX_COMPARED, f"values in {name}"))
        evaluation = evaluate(
            source.schema,
            _records(storage, source.records),
            gold,
            spend=_at_most(MAX_COMPARED, f"comparisons of the records with {name}"),
        )
    except ExtractionError as error:
        raise InputError(f"{name}: {error}", param="gold_file_id", code="invalid_gold") from None
    if not evaluation.num_documents:
        raise InputError(
            f"No document of the extraction is one of {name}. Their names must be the same: "
            f"{_first_name(storage, source.records)!r} there, {next(iter(gold), '')!r} here.",
            param="gold_file_id",
            code="invalid_gold",
        )
    return evaluation


def _at_most(most: int, what: str) -> Callable[[int], None]:
    """Return a function that counts and raises TooLargeError beyond `most`."""
    total = 0

    def spend(num: int) -> None:
        nonlocal total
        total += num
        if total > most:
            raise TooLargeError(
                f"There are more than {most:,} {what}, the maximum for a call. Download the records, and "
                "use `tokenmill extract evaluate`, or give gold for fewer documents.",
                param="gold_file_id",
            )

    return spend


def _records(storage: Storage, file: RecordsFile) -> Iterator[Mapping[str, Any]]:
    for line in iter_lines(storage.iter_chunks(file.object_key), max_line_bytes=records.MAX_RECORD_BYTES):
        assert line.content is not None, "records are shorter"
        yield orjson.loads(line.content)


def _first_name(storage: Storage, file: RecordsFile) -> str:
    return str(next(_records(storage, file), {"document": ""})["document"])
