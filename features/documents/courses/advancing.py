"""Advance documents each by itself: results of a node become further lines, in the transaction that counts them seen.

Lines for a node that has begun are added to its batch, which grows as long as an earlier node is open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from features.documents import stages
from features.documents.claims import ExtractionWork
from features.documents.collections.read_notes import note_read
from features.documents.collections.snapshot import KeptDocument
from features.documents.courses import kept_files, rows
from features.documents.courses.next_steps import NextSteps, Step
from features.documents.courses.rows import Span
from features.documents.progress import DocumentProgress
from features.documents.stages import OPTIONAL, DocumentStage, stage_of
from features.documents.standing import Standing
from features.documents.states import ExtractionState
from features.documents.tables import Extraction, ExtractionNode
from flows import nodes, results
from flows.reasons import storable
from jobs.batches import lifecycle, made_inputs
from jobs.batches.growth import adding, segments
from jobs.batches.growth.adding import NewLines, NotGrowingError
from jobs.errors import InputError, LimitError, OverBudgetError, RateLimitError, TooLargeError
from jobs.files import NewFile, new_object_key
from jobs.settings import Settings
from jobs.states import TERMINAL_BATCH_STATES, BatchState
from jobs.storage import Storage
from jobs.tables import Batch

_NO_ROOM = (LimitError, RateLimitError, TooLargeError, OverBudgetError)
"""What creating or extending a batch raises where there is no room for it."""


# Results gather for a twentieth of the time so far: the first records are there at once, and the many later ones take
# few transactions.
_LOOK_LATER = text("""
    UPDATE flow SET look_at = clock_timestamp() + least((clock_timestamp() - created_at) / 20, interval '10 seconds')
    WHERE id = :id
""")
_NOTE_SEEN = text("UPDATE flow_node SET num_seen = :num_seen WHERE flow_id = :id AND number = :number")


class WaitsForStartError(Exception):
    """A batch that is to get further lines has not started yet."""


class _RefusedError(Exception):
    """There is no room for the lines of a stage."""

    def __init__(self, stage: DocumentStage, error: InputError) -> None:
        super().__init__(str(error))
        self.stage = stage
        self.error = error


@dataclass(slots=True, kw_only=True)
class _Target:
    """A node that documents move to, and the lines that it gets."""

    number: int
    stage: DocumentStage
    batch: Batch | None
    """None: it has not begun."""
    lines: list[bytes] = field(default_factory=list)
    stored: NewFile | None = None
    """The object with the lines, which no row names yet."""
    planned: NewLines | None = None

    @property
    def num_lines(self) -> int:
        return len(self.lines) + (0 if self.batch is None else self.batch.num_requests)

    def take(self, lines: Sequence[bytes]) -> Span:
        span = Span(node=self.number, first_line=self.num_lines, num_lines=len(lines))
        self.lines.extend(lines)
        return span


class DocumentAdvancer:
    """Moves documents of an extraction from node to node."""

    def __init__(
        self,
        work: ExtractionWork,
        standing: Standing,
        storage: Storage,
        settings: Settings,
        *,
        steps: NextSteps,
        keep: Callable[[DocumentStage], dict[str, NewFile]],
    ) -> None:
        """`keep` writes the objects to keep when a stage begins, by the column that will name them."""
        self._work = work
        self._standing = standing
        self._storage = storage
        self._settings = settings
        self._steps = steps
        self._keep = keep

    def take(self, node: ExtractionNode) -> bool:
        """Act on the next results of a node; False if there are none.

        Raises WaitsForStartError, and what creating a batch raises.
        """
        batch = self._standing.batch_of(node)
        num_seen = node.num_seen or 0
        with self._work.reading() as session:
            if batch is None:
                found = rows.left_at(session, node)
            elif (page := results.next_page(session, node, batch)) is not None:
                num_seen, found = page.num_seen, rows.arrived(session, node, batch, page)
            else:
                return False
            known = list(rows.progress(session, self._standing, found))
        if batch is None and not found:
            return False
        if stage_of(node) is DocumentStage.READ and batch is not None:
            note_read(self._work, known)
        self._move(node, known, num_seen=num_seen)
        return True

    def read_more(self, node: ExtractionNode) -> bool:
        """Add the lines that read further documents, once few are under way; the last end the growth of their batch."""
        batch = self._standing.batch_of(node)
        if batch is None or not batch.is_growing or batch.state != BatchState.IN_PROGRESS:
            return False
        with self._work.reading() as session:
            found = rows.waiting(session, self._work.claim.id) if self._steps.may_ask else []
            if not found and self._steps.may_ask and rows.is_any_waiting(session, self._work.claim.id):
                return False
        target = _Target(number=node.number, stage=DocumentStage.READ, batch=batch)
        moves = {one.number: [target.take([KeptDocument(**one.document).read_line(one.number)])] for one in found}
        with suppress(NotGrowingError):  # it has just ended, which the next look sees
            self._commit(node, target if found else None, moves, num_seen=node.num_seen or 0)
        with self._work.writing() as (session, extraction):
            locked = lifecycle.lock_batch(session, batch.id)
            assert locked is not None, "rows of batches stay"
            if not self._steps.may_ask or not rows.is_any_waiting(session, extraction.id):
                segments.close(session, locked)
        return True

    def end(self, node: ExtractionNode) -> None:
        """Record that a node is over: batches behind it grow no more, unless another node before them is open."""
        left = [each for each in self._standing.open_nodes if each.number != node.number]
        with self._work.writing() as (session, extraction):
            nodes.note_ended(session, extraction, session.get_one(ExtractionNode, (extraction.id, node.number)))
            for each in left:
                if each.batch_id is not None and not any(other.number < each.number for other in left):
                    batch = lifecycle.lock_batch(session, each.batch_id)
                    assert batch is not None, "rows of batches stay"
                    segments.close(session, batch)

    # --- a page of results -------------------------------------------------------------------------------------------

    def _move(self, node: ExtractionNode, known: Sequence[DocumentProgress], *, num_seen: int) -> None:
        """Move documents to their next nodes: to one node in each transaction, and with the last the page is seen."""
        targets: dict[int, _Target] = {}
        moves = {one.number: self._spans(stage_of(node), one, targets) for one in known}
        wanted = sorted((each for each in targets.values() if each.lines), key=lambda each: each.number)
        if len(wanted) > 1:
            num_seen = node.num_seen or 0
            moves = {
                number: spans for number, spans in moves.items() if not spans or spans[-1].node == wanted[0].number
            }
        try:
            self._commit(node, wanted[0] if wanted else None, moves, num_seen=num_seen)
        except NotGrowingError:
            pass  # a batch has just ended, which the next look sees
        except _RefusedError as refused:
            if not self._is_dispensable(refused.stage) or not self._lasts(refused.error):
                raise refused.error from None
            self._ask_no_more(f"it ended before its stage {refused.stage}, which had no room: {refused.error}")

    def _is_dispensable(self, stage: DocumentStage) -> bool:
        """Tell whether records can do without the lines that a stage has no room for."""
        return stage in OPTIONAL or self._standing.node(stages.node_number(stage)) is not None

    def _lasts(self, error: InputError) -> bool:
        """Tell whether waiting is pointless: there will never be room, or the extraction's time is over."""
        if not isinstance(error, (LimitError, RateLimitError)):
            return True
        with self._work.reading() as session:
            extraction = session.get_one(Extraction, self._work.claim.id)
            return bool(session.scalar(select(func.clock_timestamp() >= extraction.expires_at)))

    def _ask_no_more(self, reason: str) -> None:
        with self._work.writing() as (_, extraction):
            extraction.early_end = storable(reason)

    def _spans(self, stage: DocumentStage, one: DocumentProgress, targets: dict[int, _Target]) -> list[Span]:
        """Plan the lines of a document's next step; nothing where it is over."""
        self._work.check()
        step, spans = self._steps.after(stage, one), list[Span]()
        while step is not None:
            target = targets.get(step.node) or targets.setdefault(step.node, self._target(step))
            if target.batch is not None and target.batch.state != BatchState.IN_PROGRESS:
                return []  # no line can be added to it
            room = self._settings.max_batch_lines - target.num_lines if step.stage in OPTIONAL else len(step.lines)
            spans.append(target.take(step.lines[: max(0, room)]))
            if spans[-1].num_lines:
                return spans
            step = self._steps.without_room(step, one)
        return []

    def _target(self, step: Step) -> _Target:
        node = self._standing.node(step.node)
        batch = None if node is None else self._standing.batch_of(node)
        if batch is not None and batch.state == BatchState.VALIDATING:
            raise WaitsForStartError
        return _Target(number=step.node, stage=step.stage, batch=batch)

    def _write(self, target: _Target) -> None:
        extraction, batch = self._standing.flow, target.batch
        if batch is not None:
            with self._work.reading() as session:
                target.planned = adding.plan(session, batch, target.lines, settings=self._settings)
        target.stored = made_inputs.write_input(
            self._storage,
            new_object_key(extraction.tenant_id),
            target.lines,
            filename=f"{extraction.id}_{target.stage}.jsonl",
            settings=self._settings,
        )

    def _commit(
        self, node: ExtractionNode, target: _Target | None, moves: dict[int, list[Span]], *, num_seen: int
    ) -> None:
        kept: dict[str, NewFile] = {}
        if target is not None:
            kept = self._keep(target.stage) if target.batch is None else {}
            self._write(target)
        with self._work.writing() as (session, extraction):
            if extraction.state != ExtractionState.IN_PROGRESS:
                return  # it was cancelled meanwhile, which the next attempt sees
            kept_files.replace(session, extraction, kept)
            if target is not None:
                self._put(session, extraction, target, kept, is_growing=self._is_fed(target, node, num_seen))
            rows.move(session, extraction.id, moves)
            session.execute(_NOTE_SEEN, {"id": extraction.id, "number": node.number, "num_seen": num_seen})
            session.execute(_LOOK_LATER, {"id": extraction.id})

    def _put(
        self,
        session: Session,
        extraction: Extraction,
        target: _Target,
        kept: dict[str, NewFile],
        *,
        is_growing: bool,
    ) -> None:
        assert target.stored is not None, "it was written"
        try:
            self._begin_or_add(session, extraction, target, target.stored, is_growing=is_growing)
        except _NO_ROOM as error:
            for new in (*kept.values(), target.stored):
                self._storage.delete(new.object_key)  # the next attempt writes them again
            raise _RefusedError(target.stage, error) from error

    def _begin_or_add(
        self, session: Session, extraction: Extraction, target: _Target, stored: NewFile, *, is_growing: bool
    ) -> None:
        if target.planned is not None:
            adding.add(session, target.planned, stored, self._settings)
            session.get_one(ExtractionNode, (extraction.id, target.number)).num_lines += len(target.lines)
            return
        stages.begin(
            session,
            extraction,
            target.stage,
            stored,
            number=target.number,
            num_lines=len(target.lines),
            settings=self._settings,
            is_growing=is_growing,
        )

    def _is_fed(self, target: _Target, source: ExtractionNode, num_seen: int) -> bool:
        """Tell whether further documents may come to a node: an earlier one has results to come."""
        open_nodes = {node.number for node in self._standing.open_nodes}
        batch = self._standing.batch_of(source)
        if batch is None or (
            BatchState(batch.state) in TERMINAL_BATCH_STATES and num_seen == batch.num_completed + batch.num_failed
        ):
            open_nodes.discard(source.number)
        return any(number < target.number for number in open_nodes)
