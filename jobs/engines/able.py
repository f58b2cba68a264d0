"""What a batch in progress lacks if no running engine of its model can run some of its lines, as a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.engines.engine import ServingEngine, missing_at_once
from jobs.engines.names import label
from jobs.lines.needs import Need
from jobs.states import EngineChoice
from jobs.tables import Batch


def lacking(session: Session, batch: Batch, engines: Sequence[ServingEngine]) -> str | None:
    """Return what a batch lacks among the running engines of its model; None if each line has one that can run it."""
    may_answer = [engine for engine in engines if may_answer_batch(batch, engine)]
    if not may_answer:
        return _of_kind(batch, engines)
    if any(Need(batch.needs) in engine.meets for engine in may_answer):
        return None
    meets = [int(engine.meets) for engine in may_answer]
    needs = session.scalar(_UNMET, {"batch_id": batch.id, "meets": meets})
    return None if needs is None else _of_needs(Need(needs), may_answer)


class Bound(Protocol):
    """What a batch says of the engines that may answer it."""

    @property
    def engine(self) -> str | None: ...
    @property
    def engine_dtype(self) -> str | None: ...
    @property
    def engine_choice(self) -> str: ...
    @property
    def is_reproducible(self) -> bool: ...
    @property
    def server_model(self) -> str | None: ...


def may_answer_batch(batch: Bound, engine: ServingEngine) -> bool:
    """Return the same as `fits.BATCH`."""
    if batch.is_reproducible and not engine.is_own:
        return False
    if batch.server_model is not None and batch.server_model not in engine.adapters:
        return False
    if batch.is_reproducible and batch.engine is not None and batch.engine_dtype != engine.dtype:
        return False
    return batch.engine in (None, engine.kind) or batch.engine_choice == EngineChoice.ANY


def _of_kind(batch: Batch, engines: Sequence[ServingEngine]) -> str:
    running = _names(engines)
    if batch.server_model is not None and not any(batch.server_model in engine.adapters for engine in engines):
        if batch.server_model.startswith("/"):  # a folder, which is the operators' matter
            return (
                f"No running worker of the model {batch.model!r} can read the adapter {batch.adapter!r} (running: "
                f"{running}). The batch continues as soon as one can; its operator sees why in the worker's log."
            )
        return (
            f"No server of a running worker of the model {batch.model!r} lists the adapter {batch.server_model!r} "
            f"(running: {running}). The batch continues as soon as one does."
        )
    if batch.is_reproducible:
        dtype = "" if batch.engine_dtype is None else f" with {batch.engine_dtype}, as its first answers had"
        return (
            f"It is to be reproducible, which only our own engine promises{dtype}, and none runs for its model "
            f"(running: {running}). The batch continues as soon as one is started "
            f"(`tokenmill worker --model {batch.model}`)."
        )
    return (
        f"Its first answer came from {batch.engine}, and no such engine runs for its model (running: {running}). The "
        "batch continues as soon as one is started; with `engine: any` a batch takes any engine."
    )


def _of_needs(needs: Need, engines: Sequence[ServingEngine]) -> str:
    names = ", ".join(missing_at_once(needs, [engine.meets for engine in engines]).names())
    return (
        f"Some of its lines need {names}, and no running engine that may answer them offers all they need (running: "
        f"{_names(engines)}). The batch continues as soon as one is started that does."
    )


def _names(engines: Sequence[ServingEngine]) -> str:
    return ", ".join(sorted({label(engine.kind, engine.version) for engine in engines}))


# By the index of open chunks of a batch; it ends at the first.
_UNMET = text("""
    SELECT needs FROM chunk WHERE batch_id = :batch_id AND state = 'ready' AND NOT EXISTS (
        SELECT FROM unnest(CAST(:meets AS bigint[])) AS engine (meets) WHERE chunk.needs & ~engine.meets = 0
    ) ORDER BY id LIMIT 1
""")
