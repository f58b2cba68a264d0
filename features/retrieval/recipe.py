"""The recipe of an index: which stage begins next, its lines, what becomes of its results, and the end.

Objects are written before a row names them, and swept if none ever does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import update
from sqlalchemy.orm import Session

from features.documents.collections.read_notes import note_read
from features.documents.extraction.retrieval.signature import EmbeddingSignature, Signature
from features.retrieval import lifecycle, stages
from features.retrieval.building import Building, CutSegments, IndexFailedError
from features.retrieval.claims import IndexWork
from features.retrieval.segments import NewSegment, WrittenVectors, write_vectors
from features.retrieval.settings import RetrievalSettings
from features.retrieval.stages import IndexStage
from features.retrieval.standing import Standing, look
from features.retrieval.states import IndexState
from features.retrieval.tables import IndexNode, IndexSegment, PassageIndex
from flows import nodes
from flows.reasons import note_reason
from flows.recipe import Recipe
from flows.tables import FlowNode
from jobs import file_room, served_models
from jobs.accounts.limits import limits_of
from jobs.errors import LimitError, RateLimitError
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.tables import Tenant

_VECTOR_BYTES = 2
"""Size of a number: fp16."""


class IndexRecipe(Recipe[PassageIndex, Standing]):
    """What an index does, stage by stage."""

    name = "index"
    kind = PassageIndex

    def __init__(self, storage: Storage, settings: Settings) -> None:
        self._storage = storage
        self._settings = settings

    def look(self, session: Session, flow_id: str) -> Standing:
        return look(session, flow_id)

    def next_nodes(self, standing: Standing) -> Sequence[str]:
        return [] if standing.next_stage is None else [standing.next_stage]

    def waits_until(self, standing: Standing) -> datetime:
        return standing.flow.expires_at

    def cancel(self, session: Session, flow: PassageIndex, *, reason: str) -> None:
        note_reason(flow, reason)
        lifecycle.INDEXES.move(session, flow, IndexState.CANCELLING)

    def end_early(self, session: Session, flow: PassageIndex, *, is_cancelled: bool) -> None:
        lifecycle.INDEXES.move(session, flow, IndexState.CANCELLED if is_cancelled else IndexState.FAILED)

    # --- a stage -----------------------------------------------------------------------------------------------------

    def begin(self, work: IndexWork, standing: Standing, name: str) -> bool:
        stage = IndexStage(name)
        building = Building(work, standing, self._storage)
        if stage is IndexStage.READ:
            documents_key = building.keep_documents()
            self._submit(work, standing.flow, stage, building.read_lines(documents_key), documents_key=documents_key)
        elif stage is IndexStage.CUT:
            segments: list[NewSegment] = []
            cut = _noting(building.new_segments(), segments, standing.flow)
            self._submit(work, standing.flow, stage, cut, segments=segments)
        else:
            self._submit(work, standing.flow, stage, building.embedding_lines(stage))
        return True

    def _submit(
        self,
        work: IndexWork,
        index: PassageIndex,
        stage: IndexStage,
        lines: Iterable[bytes],
        *,
        documents_key: str | None = None,
        segments: list[NewSegment] | None = None,
    ) -> None:
        """Write the lines of a stage, and begin it with the objects that it names."""
        written = nodes.write_lines(self._storage, index, stage, lines, settings=self._settings)
        try:
            with work.writing() as (session, locked):
                if locked.state != IndexState.IN_PROGRESS:
                    return  # it was deleted meanwhile, which the next attempt sees
                locked.documents_key = documents_key or locked.documents_key
                session.add_all(_row(locked, segment) for segment in segments or ())
                stages.begin(session, locked, stage, written, settings=self._settings)
        except (LimitError, RateLimitError):
            for unneeded in (written.object_key, documents_key):  # the next attempt writes them again
                if unneeded is not None:
                    self._storage.delete(unneeded)
            raise

    def end(self, work: IndexWork, standing: Standing, node: FlowNode) -> None:
        assert isinstance(node, IndexNode), "a stage of an index"
        if (problem := standing.problem(node)) is not None:
            raise IndexFailedError(problem)
        building = Building(work, standing, self._storage)
        if node.name == IndexStage.READ:
            note_read(work, building.progress())
        cut = building.cut_segments() if node.name == IndexStage.CUT else None
        with work.writing() as (session, index):
            if cut is not None:
                self._note_cut(session, index, cut)
            nodes.note_ended(session, index, session.get_one(IndexNode, (index.id, node.number)))

    def _note_cut(self, session: Session, index: PassageIndex, cut: CutSegments) -> None:
        """Store the results of cutting. Raises IndexFailedError if they exceed the tenant's limits."""
        dimensions = 0 if index.embedding is None else int(index.embedding["dimensions"])
        self._require_room(session, index, cut, size_bytes=cut.num_passages * dimensions * _VECTOR_BYTES)
        for number, values in cut.rows:
            mine = (IndexSegment.index_id == index.id) & (IndexSegment.number == number)
            session.execute(update(IndexSegment).where(mine).values(values))
        index.signature = cut.signature
        index.num_passages, index.num_indexed = cut.num_passages, cut.num_documents
        index.size_bytes = cut.size_bytes
        index.failed_codes, index.failures = dict(cut.codes), cut.failures

    def _require_room(self, session: Session, index: PassageIndex, cut: CutSegments, *, size_bytes: int) -> None:
        most = self._settings.of(RetrievalSettings).index_passages
        if cut.num_passages > most:
            raise IndexFailedError(
                f"it has {cut.num_passages:,} passages and {most:,} are allowed; divide the collection, or make "
                "passages longer"
            )
        tenant = session.get_one(Tenant, index.tenant_id)
        file_room.hold_room(session, tenant.id)
        size = cut.size_bytes + size_bytes
        limits = limits_of(tenant, self._settings)
        file_room.check_more_bytes(session, tenant.id, limits, size_bytes=size, of="The index")

    # --- the end -----------------------------------------------------------------------------------------------------

    def complete(self, work: IndexWork, standing: Standing, *, reason: str | None) -> None:
        del reason  # no stage is dispensable
        index = standing.flow
        if index.embedding is None or index.signature is None:
            self._end_complete(work, signature=index.signature, written=[])
            return
        embedding = EmbeddingSignature(**index.embedding)
        with work.reading() as session:
            served_models.require_same(session, str(index.embedding_model), embedding)
        building = Building(work, standing, self._storage)
        first, again = (building.embedded(stage) for stage in (IndexStage.EMBED, IndexStage.EMBED_AGAIN))
        written = []
        for segment in building.segments():
            if segment.num_passages:
                work.check()
                vectors = write_vectors(self._storage, segment, first, again, dimensions=embedding.dimensions)
                written.append((segment.number, vectors))
        if sum(vectors.num_missing for _, vectors in written) == index.num_passages:
            raise IndexFailedError("the model embedded none of its passages; the errors of stage embed's batch say why")
        signature = replace(Signature.from_json(index.signature), embedding=embedding)
        self._end_complete(work, signature=signature.to_json(), written=written)

    def _end_complete(
        self, work: IndexWork, *, signature: dict[str, object] | None, written: list[tuple[int, WrittenVectors]]
    ) -> None:
        with work.writing() as (session, index):
            if index.state == IndexState.CANCELLING:
                lifecycle.INDEXES.move(session, index, IndexState.CANCELLED)
                return
            for number, vectors in written:
                mine = (IndexSegment.index_id == index.id) & (IndexSegment.number == number)
                grown = IndexSegment.size_bytes + vectors.size_bytes
                session.execute(update(IndexSegment).where(mine).values(size_bytes=grown))
            index.size_bytes += sum(vectors.size_bytes for _, vectors in written)
            index.num_without_vector = sum(vectors.num_missing for _, vectors in written)
            index.signature = signature
            note_reason(index, None if signature is not None else "none of its documents has a passage")
            lifecycle.INDEXES.move(session, index, IndexState.COMPLETED if signature is not None else IndexState.FAILED)


def _noting(segments: Iterable[NewSegment], recorded: list[NewSegment], index: PassageIndex) -> Iterator[bytes]:
    """Yield the lines of segments and record them without their documents, which rows only count."""
    for segment in segments:
        recorded.append(segment)
        yield segment.line(index)


def _row(index: PassageIndex, segment: NewSegment) -> IndexSegment:
    return IndexSegment(
        index_id=index.id,
        number=segment.number,
        object_key=segment.object_key,
        num_documents=len(segment.documents),
    )
