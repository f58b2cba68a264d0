"""The lines of an index's batches and the results of earlier stages, read under its claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select

from features.documents.collections import documents
from features.documents.collections.snapshot import KeptDocument, encoded, kept_documents
from features.documents.progress import DocumentProgress, StageFiles, read_documents
from features.retrieval.claims import IndexWork
from features.retrieval.objects import new_key
from features.retrieval.segments import NewSegment, custom_id, embedding_lines, new_segments
from features.retrieval.stages import IndexStage
from features.retrieval.standing import Standing
from features.retrieval.tables import IndexSegment
from flows.reasons import storable
from jobs import files
from jobs.batches.ordered_results import OrderedResults
from jobs.counted import counted
from jobs.errors import InputError
from jobs.storage import Storage

MAX_FAILURES = 100
"""Maximum number of documents listed as failed; all are counted by code."""
_ROWS_A_LOOK = 1000


class IndexFailedError(InputError):
    """An index cannot be built; the message is the reason."""


@dataclass(slots=True, kw_only=True)
class CutSegments:
    """Results of cutting."""

    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Numbers of segments, with the column values of their rows."""
    signature: dict[str, Any] | None = None
    """Of all segments; None if there is no passage."""
    num_passages: int = 0
    num_documents: int = 0
    size_bytes: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def fail(self, document_id: str, name: str, code: str, message: str) -> None:
        """Record a document that is not in the index."""
        self.codes[code] += 1
        if len(self.failures) < MAX_FAILURES:
            failure = {"document_id": document_id, "document": name, "code": code, "message": message}
            self.failures.append({key: storable(value) for key, value in failure.items()})


class Building:
    """The lines of an index's next stage, and the answers of earlier stages."""

    def __init__(self, work: IndexWork, standing: Standing, storage: Storage) -> None:
        self._work = work
        self._standing = standing
        self._storage = storage

    # --- reading -----------------------------------------------------------------------------------------------------

    def keep_documents(self) -> str:
        """Write the current documents as an object that no row names yet; return its key."""
        key = new_key(self._standing.flow.tenant_id)
        self._storage.put(key, encoded(self._documents()))
        return key

    def read_lines(self, documents_key: str) -> Iterator[bytes]:
        """Yield the lines that read the stored documents."""
        return (document.read_line(number) for number, document in kept_documents(self._storage, documents_key))

    def progress(self) -> Iterator[DocumentProgress]:
        """Yield each document with the result of reading it."""
        index = self._standing.flow
        assert index.documents_key is not None, "its first stage has begun"
        for one in read_documents(self._storage, index.documents_key, self._files_of(IndexStage.READ)):
            self._work.check()
            yield one

    # --- cutting -----------------------------------------------------------------------------------------------------

    def new_segments(self) -> Iterator[NewSegment]:
        """Yield the segments to make of the read documents."""
        return new_segments(self.progress(), self._standing.flow)

    def cut_segments(self) -> CutSegments:
        """Return the results for all documents. Raises IndexFailedError if workers of two releases cut them."""
        cut = CutSegments()
        names: dict[str, str] = {}
        for one in self.progress():
            names[one.document.id] = one.document.name
            problem = one.problem() if one.read is None or one.read.error is not None else None
            if problem is not None:
                cut.fail(one.document.id, one.document.name, str(problem["code"]), str(problem["message"]))
        results = self._results(IndexStage.CUT)
        for segment in self.segments():
            self._add(cut, segment, results, names)
        return cut

    def _add(
        self, into: CutSegments, segment: IndexSegment, results: Sequence[OrderedResults], names: dict[str, str]
    ) -> None:
        name = custom_id(segment.number)
        line = next((line for each in results if (line := each.take(name)) is not None), {})
        body = (line.get("response") or {}).get("body") or {}
        error = line.get("error") or body.get("error")
        if error is not None or not body:
            problem = error or {"code": "no_result", "message": "the batch of this stage has no result"}
            reason = f"{counted(segment.num_documents, 'document')} could not be cut: {problem['message']}"
            raise IndexFailedError(f"{reason}; build the index again")
        for failed in body["failed"]:
            into.fail(failed["id"], names.get(failed["id"], ""), failed["code"], failed["message"])
        if body["num_passages"]:
            if into.signature not in (None, body["signature"]):
                raise IndexFailedError("workers of two releases have cut its documents; build the index again")
            into.signature = body["signature"]
        into.num_documents += body["num_documents"]
        into.num_passages += body["num_passages"]
        into.size_bytes += body["size_bytes"]
        values = {name: body[name] for name in ("num_documents", "num_passages", "size_bytes")}
        into.rows.append((segment.number, values))

    # --- embedding ---------------------------------------------------------------------------------------------------

    def embedding_lines(self, stage: IndexStage) -> Iterator[bytes]:
        """Yield the lines that embed all passages, or only those of failed requests in the second stage."""
        first = self.embedded(IndexStage.EMBED) if stage is IndexStage.EMBED_AGAIN else None
        for segment in self.segments():
            if segment.num_passages:
                for line in embedding_lines(self._storage, self._standing.flow, segment, first):
                    self._work.check()
                    yield line

    def embedded(self, stage: IndexStage) -> OrderedResults:
        """Return the model's answers in a stage."""
        return self._results(stage)[0]

    def segments(self) -> Sequence[IndexSegment]:
        """Return the rows of all segments, in order."""
        mine = IndexSegment.index_id == self._work.claim.id
        with self._work.reading() as session:
            rows = session.scalars(select(IndexSegment).where(mine).order_by(IndexSegment.number)).all()
            session.expunge_all()
        return rows

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _documents(self) -> Iterable[KeptDocument]:
        after = -1
        while True:
            with self._work.reading() as session:
                rows = documents.iter_documents(
                    session, self._standing.flow.collection_id, after=after, limit=_ROWS_A_LOOK
                )
            if not rows:
                return
            yield from map(KeptDocument.of, rows)
            after = rows[-1].number

    def _results(self, stage: IndexStage) -> Sequence[OrderedResults]:
        stage_files = self._files_of(stage)
        return [OrderedResults(self._storage, key) for key in (stage_files.output_key, stage_files.errors_key)]

    def _files_of(self, stage: IndexStage) -> StageFiles:
        batch = self._standing.of_stage(stage)
        if batch is None:
            return StageFiles()
        return StageFiles(output_key=self._key_of(batch.output_file_id), errors_key=self._key_of(batch.error_file_id))

    def _key_of(self, file_id: str | None) -> str | None:
        """Return the object of a file. Raises IndexFailedError if it was deleted."""
        if file_id is None:
            return None
        with self._work.reading() as session:
            file = files.find_kept(session, self._standing.flow.tenant_id, file_id)
        if file is None:
            raise IndexFailedError(f"the file {file_id!r} was deleted while the index needed it; build the index again")
        return file.object_key
