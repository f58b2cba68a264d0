"""The recipe of a fill: queries are embedded, passages are found, and the input is written anew with them.

Its batch is held meanwhile, and validated again afterwards like any other one. Objects are written before a row names
them, and swept if none ever does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from features.documents.collections.embedders import Embedder, EmbedderOf
from features.retrieval import questions
from features.retrieval.fills.asking import Asking, NewLookup
from features.retrieval.fills.filling import Filling
from features.retrieval.fills.lifecycle import FILLS
from features.retrieval.fills.results import Answers
from features.retrieval.fills.standing import Standing, look
from features.retrieval.states import FillState
from features.retrieval.tables import FillNode, PassageFill
from flows import nodes
from flows.reasons import note_reason
from flows.recipe import Recipe
from flows.tables import Flow, FlowNode
from jobs import files
from jobs.accounts import budgets
from jobs.batches import lifecycle as batches
from jobs.batches import made_inputs
from jobs.batches.scan import whole_file_problem
from jobs.batches.validation import scan_of
from jobs.claims.work import ClaimedWork
from jobs.errors import LimitError, NotFoundError, OverBudgetError, RateLimitError, TooLargeError
from jobs.files import MAX_EXPIRY_SECONDS, NewFile
from jobs.lines.bodies import ChatRequest
from jobs.lines.body_context import ContextRequest
from jobs.lines.filled_lines import UNAVAILABLE
from jobs.lines.reading import InputLine, LineProblem, RawLine, iter_lines
from jobs.settings import Settings
from jobs.states import AskedPriority, BatchState, Priority, UncoveredLines
from jobs.storage import Storage
from jobs.tables import Batch

FillWork = ClaimedWork[PassageFill]

_TRIES_TO_READ = 5
"""After so many tries, in two and a half minutes, results that the store does not have are lost."""
_NEVER = datetime.max.replace(tzinfo=UTC)


class FillRecipe(Recipe[PassageFill, Standing]):
    """Looks up the passages of one batch."""

    name = "fill"
    kind = PassageFill
    outlasts_services = True  # the window of its batch ends it

    def __init__(
        self, storage: Storage, settings: Settings, *, embedder_of: EmbedderOf = questions.embedder_of
    ) -> None:
        self._storage = storage
        self._settings = settings
        self._embedder_of = embedder_of

    def look(self, session: Session, flow_id: str) -> Standing:
        return look(session, flow_id)

    def next_nodes(self, standing: Standing) -> Sequence[str]:
        return standing.next_lookups

    def waits_until(self, standing: Standing) -> datetime:
        return _NEVER

    def lock(self, session: Session, flow_id: str) -> PassageFill | None:
        # The batch first, like those who cancel it.
        batch_id = session.scalar(select(Flow.for_batch_id).where(Flow.id == flow_id))
        if batch_id is not None:
            batches.lock_batch(session, batch_id)
        return super().lock(session, flow_id)

    def cancel(self, session: Session, flow: PassageFill, *, reason: str) -> None:
        note_reason(flow, reason)
        FILLS.move(session, flow, FillState.CANCELLING)

    def end_early(self, session: Session, flow: PassageFill, *, is_cancelled: bool) -> None:
        FILLS.move(session, flow, FillState.CANCELLED if is_cancelled else FillState.FAILED)
        batch = session.get_one(Batch, flow.for_batch_id)
        if batch.held_by == flow.id and not is_cancelled:
            batch.held_by = None
            batch.errors = [whole_file_problem(UNAVAILABLE, f"no passages were found for its prompts: {flow.reason}")]
            batches.move_batch(session, batch, BatchState.FAILED)
            budgets.release(session, batch)

    # --- a lookup ----------------------------------------------------------------------------------------------------

    def begin(self, work: FillWork, standing: Standing, name: str) -> bool:
        """As `Recipe.begin`; where no query needs a vector, the search begins in place of embedding."""
        asking = Asking(
            self._storage,
            standing.batch,
            embedded=self._embedded(standing),
            embedder_of=lambda index_id: self._embedder(work, standing.flow.tenant_id, index_id),
            settings=self._settings,
        )
        try:
            with asking.written():
                for _, line, context in self._lines(work, standing):
                    if line is not None and context is not None:
                        asking.ask(line, context)
        except NotFoundError as error:
            self._give_back(work, reason=error.message)
            return True
        for key in asking.unused_keys():
            self._storage.delete(key)
        lookups = asking.lookups()
        if lookups:
            self._submit(work, standing, lookups)
        return bool(lookups)

    def _submit(self, work: FillWork, standing: Standing, lookups: Sequence[NewLookup]) -> None:
        try:
            with work.writing() as (session, fill):
                if fill.state != FillState.IN_PROGRESS:
                    return  # its batch was cancelled meanwhile, which the next attempt sees
                batch = session.get_one(Batch, fill.for_batch_id)
                for number, new in enumerate(lookups, start=len(standing.begun)):
                    node = FillNode(flow_id=fill.id, number=number, name=new.lookup.value, num_lines=new.num_lines)
                    nodes.begin(
                        session, fill, node, lines=new.lines, wanted=_wanted(batch, new), settings=self._settings
                    )
                fill.models = [*fill.models, *(new.model for new in lookups if new.model is not None)]
        except (LimitError, OverBudgetError, RateLimitError, TooLargeError) as error:
            for new in lookups:  # the next attempt writes them again
                self._storage.delete(new.lines.object_key)
            raise LimitError(error.message) from error

    def end(self, work: FillWork, standing: Standing, node: FlowNode) -> None:
        # However its batch has ended: what was not looked up is the error of its line.
        with work.writing() as (session, fill):
            nodes.note_ended(session, fill, session.get_one(FillNode, (fill.id, node.number)))

    # --- the end -----------------------------------------------------------------------------------------------------

    def complete(self, work: FillWork, standing: Standing, *, reason: str | None) -> None:
        del reason  # no lookup is dispensable
        try:
            filled = self._filled(work, standing)
        except NotFoundError as error:
            self._give_back(work, reason=error.message)
            return
        with work.writing() as (session, fill):
            if fill.state != FillState.IN_PROGRESS:
                self.end_early(session, fill, is_cancelled=True)
                return
            batch = session.get_one(Batch, fill.for_batch_id)
            batch.source_file_id = batch.input_file_id
            batch.input_file_id = files.create_file(session, batch.tenant_id, filled).id
            batch.held_by = batch.hinted_at = None
            FILLS.move(session, fill, FillState.COMPLETED)

    def _filled(self, work: FillWork, standing: Standing) -> NewFile:
        """Write the input with its passages. Raises NotFoundError where the store does not have the input."""
        key = files.new_object_key(standing.flow.tenant_id)
        source = standing.input.object_key
        with made_inputs.open_input(self._storage, key, settings=self._settings) as writer:
            filling = Filling(
                writer,
                None if standing.search is None else self._answers(standing, standing.search),
                pieces_of=lambda raw: self._storage.iter_range(source, raw.byte_start, raw.byte_end),
                max_line_bytes=self._settings.max_line_bytes,
            )
            for raw, line, context in self._lines(work, standing):
                if line is None or context is None:
                    filling.copy(raw)
                else:
                    filling.fill(raw, line)
        return writer.new_file(key, filename=f"{standing.batch.id}_with_passages.jsonl")

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _lines(
        self, work: FillWork, standing: Standing
    ) -> Iterator[tuple[RawLine, InputLine | None, ContextRequest | None]]:
        """Yield each line of the input, if valid also parsed, and what it asks for, if it does."""
        with work.reading() as session:
            scan = scan_of(session, standing.batch, self._settings)
        source = standing.input
        pieces = work.checked(self._storage.iter_range(source.object_key, 0, source.size_bytes))
        for raw in iter_lines(pieces, max_line_bytes=self._settings.max_line_bytes):
            try:
                line, request = scan.checked(raw)
            except LineProblem:
                yield raw, None, None
            else:
                yield raw, line, request.context if isinstance(request, ChatRequest) else None

    def _embedder(self, work: FillWork, tenant_id: str, index_id: str) -> Embedder | None:
        with work.reading() as session:
            return self._embedder_of(session, tenant_id, index_id)

    def _embedded(self, standing: Standing) -> dict[str, Answers] | None:
        if standing.embedded is None:
            return None
        return {model: self._answers(standing, batch) for model, batch in standing.embedded.items()}

    def _answers(self, standing: Standing, batch: Batch) -> Answers:
        may_be_late = standing.flow.num_tries < _TRIES_TO_READ
        return Answers(self._storage, batch, standing.keys, may_be_late=may_be_late)

    def _give_back(self, work: FillWork, *, reason: str) -> None:
        """End without the input: validation finds out whether it is lost, and fails its batch or asks again."""
        with work.writing() as (session, fill):
            if fill.state == FillState.IN_PROGRESS:
                session.get_one(Batch, fill.for_batch_id).held_by = None
                note_reason(fill, reason)
                FILLS.move(session, fill, FillState.FAILED)


def _wanted(batch: Batch, new: NewLookup) -> nodes.NodeBatch:
    return nodes.NodeBatch(
        name=new.lookup.value,
        endpoint=new.endpoint,
        priority=AskedPriority.BULK if batch.priority == Priority.OVERFLOW else batch.priority,
        expires_at=batch.expires_at,
        metadata={"stage_of": batch.id},
        outputs_last_seconds=MAX_EXPIRY_SECONDS,
        serves=batch.id,
        uncovered_lines=UncoveredLines(batch.uncovered_lines),
        trace_context=batch.trace_context,
    )
