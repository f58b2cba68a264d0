"""Retrieval during validation: which step is next, and the stages it creates.

Repeatable: a stage exists once the transaction that releases the claim has committed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from jobs import files
from jobs.batches import made_inputs
from jobs.batches.claims import BatchWork
from jobs.batches.made_inputs import InputWriter
from jobs.batches.retrieval.asking import Asking, EmbedderOf, NewStage
from jobs.batches.retrieval.filling import Filling
from jobs.batches.retrieval.results import StageResults
from jobs.batches.retrieval.stages import RetrievalStage
from jobs.batches.submission import CreateBatch
from jobs.call_limits import MAX_WINDOW
from jobs.errors import OverBudgetError, TooLargeError
from jobs.files import NewFile
from jobs.settings import Settings
from jobs.states import AskedPriority, InvalidLines, Priority, StageKind, UncoveredLines
from jobs.storage import Storage
from jobs.tables import Batch, BatchStage, Tenant

log = logging.getLogger(__name__)

ROOM_PAUSE = timedelta(seconds=30)
"""Room comes as batches end, and each attempt reads the whole input."""


class Retrieval:
    """One step: queries are written, or lines are filled."""

    def __init__(self, storage: Storage, closing: ExitStack, *, settings: Settings) -> None:
        """Writing is complete once `closing` is closed."""
        self._storage = storage
        self._closing = closing
        self._settings = settings
        self._filled: tuple[str, InputWriter] | None = None

    def passages(self, batch: Batch, stages: Sequence[RetrievalStage], embedder_of: EmbedderOf) -> Asking | Filling:
        """Return the receiver of the input's lines for the step after these stages, which have ended."""
        finding = next((stage for stage in stages if stage.kind is StageKind.FIND), None)
        if finding is None:
            return Asking(
                self._storage,
                self._closing,
                batch_id=batch.id,
                tenant_id=batch.tenant_id,
                embedded=stages,
                embedder_of=embedder_of,
                settings=self._settings,
            )
        key = files.new_object_key(batch.tenant_id)
        opened = made_inputs.open_input(self._storage, key, settings=self._settings)
        self._filled = key, self._closing.enter_context(opened)
        return Filling(StageResults(self._storage, finding), self._filled[1])

    def new_input(self, batch_id: str) -> NewFile | None:
        """Return the input with its passages, once written; None where no line changed."""
        if self._filled is None:
            return None
        key, writer = self._filled
        return writer.new_file(key, filename=f"{batch_id}_with_passages.jsonl")


def begin(work: BatchWork, stages: Sequence[NewStage], settings: Settings) -> None:
    """Create the batches of stages; where the queue has no room, the batch is put off for a pause."""
    try:
        with work.writing() as (session, batch):
            _submit_all(session, batch, stages, settings)
    except (OverBudgetError, TooLargeError) as error:
        log.info("batch waits for room for its passages batch_id=%s reason=%s", work.claim.id, error)
        work.put_off(ROOM_PAUSE)


def use_input(session: Session, batch: Batch, new: NewFile | None) -> None:
    """Run an input with passages in place of the owner's, which the batch still names."""
    if new is not None:
        batch.source_file_id = batch.input_file_id
        batch.input_file_id = files.create_file(session, batch.tenant_id, new).id


def _submit_all(session: Session, batch: Batch, stages: Sequence[NewStage], settings: Settings) -> None:
    first = session.scalar(select(func.count()).where(BatchStage.batch_id == batch.id)) or 0
    tenant = session.get_one(Tenant, batch.tenant_id)
    for number, stage in enumerate(stages, start=first):
        request = _wanted(session, batch, stage)
        stage_batch = made_inputs.submit(session, tenant, request, stage.lines, settings, key_id=batch.api_key_id).batch
        row = BatchStage(
            batch_id=batch.id, number=number, kind=stage.kind, model=stage.model, stage_batch_id=stage_batch.id
        )
        session.add(row)
        session.flush()


def _wanted(session: Session, batch: Batch, stage: NewStage) -> CreateBatch:
    return CreateBatch(
        input_file_id="",
        made_from=f"{stage.kind} of {batch.id}, {stage.model}",
        stage_of=batch.id,
        endpoint=stage.endpoint,
        completion_window=_window_left(session, batch),
        metadata={"stage_of": batch.id, "stage": stage.kind.value},
        output_expires_after_seconds=files.MAX_EXPIRY_SECONDS,
        priority=AskedPriority.BULK if batch.priority == Priority.OVERFLOW else AskedPriority(batch.priority),
        invalid_lines=InvalidLines.SKIP,
        uncovered_lines=UncoveredLines(batch.uncovered_lines),
        trace_context=batch.trace_context,
        is_ours=True,
    )


def _window_left(session: Session, batch: Batch) -> str:
    """Return the rest of the batch's window in minutes; at least one."""
    now = session.scalar(select(func.clock_timestamp()))
    assert now is not None
    left = math.ceil((batch.expires_at - now).total_seconds() / 60)
    return f"{min(max(1, left), int(MAX_WINDOW.total_seconds() // 60))}m"
