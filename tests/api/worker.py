"""The parts of workers and control workers in a batch, for tests of what its owner sees."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from sqlalchemy import text

from jobs.batches import sweeps
from jobs.batches.finalisation import finalise_batch
from jobs.batches.validation import validate_batch
from jobs.chunks import claiming, leasing
from jobs.chunks.recording import LineResult
from jobs.database import sessions
from jobs.lines.output_lines import error_line, output_line
from jobs.lines.reading import custom_id_of
from jobs.states import BatchState
from jobs.storage import Storage

LEASE = timedelta(seconds=60)


def validate(deployment: Any, batch_id: str) -> BatchState | None:
    settings = deployment.settings
    return validate_batch(sessions(deployment.engine), Storage(settings.storage_url), batch_id, settings=settings)


def run(deployment: Any, batch_id: str, *, failed: Collection[int] = (), code: str = "engine_failure") -> None:
    """Validate a batch and answer its open lines, those of `failed` with an error, then write its files."""
    validate(deployment, batch_id)
    maker, storage = sessions(deployment.engine), Storage(deployment.settings.storage_url)
    with maker() as session:
        query = text("SELECT id FROM chunk WHERE batch_id = :id AND state = 'ready' ORDER BY id")
        chunks = session.scalars(query, {"id": batch_id}).all()
    for chunk_id in chunks:
        with maker.begin() as session:
            claim = claiming.claim_chunk(session, chunk_id, worker_id="worker", lease=LEASE)
            assert claim is not None
            lines = claim.split(claim.read(storage))
            done = leasing.lines_done(session, claim)
            results = [
                _result(batch_id, line.line_no, custom_id_of(line.content), code if line.line_no in failed else None)
                for line in lines
                if line.line_no not in done
            ]
            leasing.flush(session, claim, results, flush_no=1, lease=LEASE)
            leasing.complete(session, claim)
    with maker.begin() as session:
        sweeps.finish_ready(session)
    finalise_batch(maker, storage, batch_id, settings=deployment.settings)


def _result(batch_id: str, line_no: int, custom_id: str | None, code: str | None) -> LineResult:
    if code is not None:
        line = error_line(batch_id, line_no, custom_id, code=code, message="no")
        return LineResult(line_no=line_no, line=line, status_code=None)
    line = output_line(batch_id, line_no, custom_id, status_code=200, body={"object": "chat.completion"})
    return LineResult(line_no=line_no, line=line, status_code=200, input_tokens=5, output_tokens=2)
