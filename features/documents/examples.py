"""Worked examples of an extraction: documents with known fields, from a gold file or from reviews.

Checked when the extraction is created, and read once its documents are read, since examples need texts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import orjson
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from features.documents import records
from features.documents.extraction.course.job import ExtractJob
from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.layout import layout
from features.documents.extraction.errors import ExtractionError
from features.documents.extraction.evaluation.gold import GoldDocument, read_gold_file
from features.documents.extraction.fields.paths import spell
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.passes.examples import Example
from features.documents.extraction.scoring.verdicts import Reason, Verdict
from features.documents.reviewing import reviewed, reviews
from features.documents.tables import CollectionDocument, Review
from jobs import files
from jobs.errors import ConflictError, InputError, TooLargeError
from jobs.lines.reading import iter_lines
from jobs.settings import MIB
from jobs.storage import Storage, read_documents

MAX_EXAMPLES = 100
"""Each prompt shows the three examples that are most similar to its document."""
MAX_GOLD_BYTES = 4 * MIB
MAX_TEXT_BYTES = 32 * 1024
"""Limit for one example: every line that grounds answers reads all of them."""

Reading = Callable[[], AbstractContextManager[Session]]
"""Opens a read-only transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """The source of an extraction's examples, and the tenant that they are read for."""

    reading: Reading
    storage: Storage
    tenant_id: str
    collection_id: str
    source: str
    """The id of a gold file, or of an extraction whose reviews are gold."""
    checked: Callable[[Iterator[bytes]], Iterator[bytes]] = iter
    """Passes on the pieces of a long object, and raises once the reader must stop."""

    def check(self, schema: FieldSchema) -> None:
        """Raise InputError for a source that does not fit this schema, NotFoundError for another tenant's."""
        if self._is_reviews:
            with self.reading() as session:
                self._require_reviews(session, schema)
        else:
            gold = self._gold(schema)
            with self.reading() as session:
                self._named(session, gold)

    def read(self, job: ExtractJob) -> tuple[Example, ...]:
        """Return the examples with their texts, once the collection's documents are read. Raises InputError."""
        examples = tuple(self._of_reviews(job) if self._is_reviews else self._of_file(job))
        if not examples:
            raise InputError(
                f"{self.source} has no example whose document is still there, and short enough for a prompt. Create "
                "the extraction without examples, or with others."
            )
        return examples

    @property
    def _is_reviews(self) -> bool:
        return self.source.startswith("extraction_")

    # --- a gold file -------------------------------------------------------------------------------------------------

    def _gold(self, schema: FieldSchema) -> Mapping[str, GoldDocument]:
        with self.reading() as session:
            file = files.get_file(session, self.tenant_id, self.source)
            object_key, size_bytes = file.object_key, file.size_bytes
        if size_bytes > MAX_GOLD_BYTES:
            raise TooLargeError(
                f"{self.source} has {size_bytes:,} bytes, and a gold file of examples may have {MAX_GOLD_BYTES:,}.",
                param="examples",
            )
        content = b"".join(self.storage.iter_chunks(object_key))
        try:
            gold = read_gold_file(content, schema)
        except ExtractionError as error:
            raise InputError(f"{self.source} is no gold of this schema: {error}", param="examples") from None
        if not 0 < len(gold) <= MAX_EXAMPLES:
            raise InputError(
                f"{self.source} has {len(gold):,} documents; give from 1 to {MAX_EXAMPLES} as examples.",
                param="examples",
            )
        return gold

    def _named(self, session: Session, gold: Mapping[str, GoldDocument]) -> dict[str, CollectionDocument]:
        """Return the documents of gold without texts, by its keys: documents of the tenant with these ids or names.

        A line read back from an extraction has both, and its id matches nothing once that document is deleted.
        """
        gold = {key: one for key, one in gold.items() if one.text is None}
        by_id, by_name = self._called(session, {*gold, *(one.document for one in gold.values())}, ids=gold.keys())
        documents: dict[str, CollectionDocument] = {}
        for key, one in gold.items():
            matches = [by_id[key]] if key in by_id else by_name.get(one.document, [])
            if not matches:
                raise self._refused(
                    f"{one.document[:200]!r}, which is no document of the collection, and no id of another one's. Give "
                    "names as the collection has them, or ids."
                )
            if len(matches) > 1:
                raise self._refused(
                    f"{one.document!r}, as two documents of the collection are called: give the id of one."
                )
            if matches[0] in documents.values():
                raise self._refused(f"{matches[0].name!r} in two lines. Keep one of them.")
            documents[key] = matches[0]
        return documents

    def _called(
        self, session: Session, names: Collection[str], *, ids: Collection[str]
    ) -> tuple[dict[str, CollectionDocument], dict[str, list[CollectionDocument]]]:
        """Return the documents with one of these ids, and the other documents of the collection by name."""
        row = CollectionDocument
        in_collection = (row.collection_id == self.collection_id) & row.name.in_(names)
        mine = (row.tenant_id == self.tenant_id) & row.deleted_at.is_(None)
        by_id: dict[str, CollectionDocument] = {}
        by_name: dict[str, list[CollectionDocument]] = {}
        for each in session.scalars(select(row).where(mine, or_(in_collection, row.id.in_(ids))).order_by(row.number)):
            if each.id in ids:
                by_id[each.id] = each
            else:
                by_name.setdefault(each.name, []).append(each)
        return by_id, by_name

    def _refused(self, why: str) -> InputError:
        return InputError(f"{self.source} names {why}", param="examples")

    def _of_file(self, job: ExtractJob) -> Iterator[Example]:
        gold, fits = self._gold(job.schema), job.fits()
        with self.reading() as session:
            documents = self._named(session, gold)
        for name, gold_document in gold.items():
            text = self._document_text(name, documents[name]) if gold_document.text is None else gold_document.text
            example = Example(document_text=text, fields=gold_document.fields)
            if not _is_short(example, fits):
                raise InputError(
                    f"{name!r}, an example of {self.source}, is too long: a prompt has no room for three such ones "
                    "beside the fields and the answer. Leave it out of the gold file."
                )
            yield example

    def _document_text(self, name: str, row: CollectionDocument) -> str:
        """Return the text of a document of gold. Raises InputError if it was not read."""
        text = None if row.object_key is None else self._text(row.object_key)
        if text is None:
            why = f"could not be read: {row.error['message']}" if row.error else "is not read: extract from it first"
            raise InputError(f"{name!r}, an example of {self.source}, {why}")
        return text

    # --- reviews -----------------------------------------------------------------------------------------------------

    def _require_reviews(self, session: Session, schema: FieldSchema) -> None:
        extraction = reviews.completed(session, self.tenant_id, self.source)
        if extraction.plan.get("corpus") is not None:
            raise InputError(
                f"{self.source} was asked of an index, and examples are whole documents. Give an extraction of a "
                "collection, or a gold file.",
                param="examples",
            )
        kinds = {leaf.path: leaf.type for leaf in schema.leaves}
        for leaf in FieldSchema.parse(extraction.plan["schema"]).leaves:
            if kinds.get(leaf.path) is not leaf.type:
                raise InputError(
                    f"{self.source} was asked for {spell(leaf.path)!r} as {leaf.type}, which this schema does not ask: "
                    "examples are of the same fields.",
                    param="examples",
                )
        if not self._decided(session):
            raise ConflictError(
                f"No document of {self.source} is reviewed: decide about all doubtful values of one first.",
                param="examples",
                code="too_few_reviews",
            )

    def _decided(self, session: Session) -> list[str]:
        """Return the documents without doubtful values left to decide or to list, latest decision first."""
        is_open = func.bool_or(Review.decided_at.is_(None) & (Review.reason == Reason.DOUBT))
        decided_at = func.max(Review.decided_at)
        lacks_items = func.bool_or((Review.verdict == Verdict.REJECT) & reviewed.IS_LIST)
        query = select(Review.document_id).where(Review.extraction_id == self.source).group_by(Review.document_id)
        decided = query.having(decided_at.is_not(None) & ~is_open & ~lacks_items).order_by(
            decided_at.desc(), Review.document_id
        )
        return list(session.scalars(decided.limit(MAX_EXAMPLES)))

    def _of_reviews(self, job: ExtractJob) -> Iterator[Example]:
        with self.reading() as session:
            self._require_reviews(session, job.schema)
            extraction = reviews.completed(session, self.tenant_id, self.source)
            file = records.records_file(session, extraction)
            row = CollectionDocument
            kept = row.id.in_(self._decided(session)) & row.deleted_at.is_(None) & row.object_key.is_not(None)
            keys = {each.id: each.object_key for each in session.scalars(select(row).where(kept))}
        fits = job.fits()
        pieces = self.checked(self.storage.iter_chunks(file.object_key))
        for line in iter_lines(pieces, max_line_bytes=records.MAX_RECORD_BYTES):
            document_id = orjson.loads(line.content or b"{}").get("document_id")
            object_key = keys.pop(document_id, None)
            if object_key is not None and (text := self._text(object_key)) is not None:
                with self.reading() as session:
                    (edited,) = reviewed.with_decisions(session, extraction, (line.content or b"") + b"\n").splitlines()
                example = Example(document_text=text, fields=orjson.loads(edited)["fields"])
                if _is_short(example, fits):
                    yield example
            if not keys:
                return

    def _text(self, object_key: str) -> str | None:
        stored = read_documents.find(self.storage, object_key)
        return None if stored is None else layout(Document.from_bytes(stored)).text


def _is_short(example: Example, fits: Callable[[Example], bool]) -> bool:
    return len(example.document_text.encode()) <= MAX_TEXT_BYTES and fits(example)
