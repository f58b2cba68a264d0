"""The worker role of a model that answers with vectors: one process, one encoder on the CPU, no engine."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

from sqlalchemy.orm import Session, sessionmaker

from engine.errors import EngineError
from engine.pooling.embedder import Embedder
from jobs import served_models
from jobs.database import transaction
from jobs.errors import InputError
from jobs.ids import new_id
from jobs.lines.endpoints import LineKind
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.telemetry import serving
from jobs.telemetry.collector import start_traces
from jobs.telemetry.declared import worker_meters
from workers.drain import Drain
from workers.embedding.answers import VectorAnswers
from workers.embedding.run import EmbeddingParts
from workers.embedding.runner import EmbeddingRunner
from workers.pool import serve_chunks

log = logging.getLogger(__name__)


def main(
    settings: Settings,
    *,
    model: str,
    path: str | None,
    folder: Path,
    sessions: sessionmaker[Session],
    hold_sessions: sessionmaker[Session],
    before_database: Callable[[], None],
) -> None:
    """Serve the encoder in `folder` as `model` until SIGTERM; the rest as for `gpu_main.main`.

    Raises InputError where the folder cannot be served, ConflictError where the name answers other lines so far.
    """
    embedder = _load(folder)
    meters = worker_meters()
    serving.serve(meters.registry, host=settings.metrics_host, port=settings.metrics_port)
    traces = start_traces(settings.traces_url, role="worker", share_of_lines=settings.traces_lines)
    if path is not None:
        before_database()
    with transaction(sessions) as session:  # only now: a model that cannot be served here must not become known
        if path is not None:
            served_models.put_model(session, model, path)
        served_models.note_kind(session, model, LineKind.POOL)
    answers, storage = VectorAnswers(embedder, model=model), Storage.of(settings)

    def make_parts(drain: Drain) -> EmbeddingParts:
        return EmbeddingParts(
            embedder=embedder,
            answers=answers,
            sessions=sessions,
            hold_sessions=hold_sessions,
            storage=storage,
            settings=settings,
            drain=drain,
            meters=meters,
            traces=traces,
        )

    log.info("encoder ready dimensions=%d max_tokens=%d", embedder.dimensions, embedder.max_tokens)
    exit_code = serve_chunks(
        EmbeddingRunner(make_parts),
        model=model,
        worker_id=new_id("worker"),
        sessions=sessions,
        hold_sessions=hold_sessions,
        settings=settings,
        meters=meters,
    )
    sys.exit(exit_code)


def _load(folder: Path) -> Embedder:
    if not (folder / "modules.json").is_file():
        raise InputError(
            f"{folder} has no modules.json to say how its encoder makes a vector of a text. Save it with "
            "sentence-transformers, which writes that."
        )
    try:
        return Embedder(folder)
    except EngineError as error:
        raise InputError(str(error)) from None
