"""The worker role of a pooling model: one process, one model on the CPU, no engine."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from engine.errors import EngineError
from engine.pooling.embedder import Embedder
from engine.pooling.purposes import Purpose
from engine.pooling.reranker import Reranker
from jobs import served_models
from jobs.database import transaction
from jobs.errors import InputError
from jobs.settings import Settings
from jobs.storage import Storage, store_marker, tokenizers
from jobs.telemetry import serving
from jobs.telemetry.collector import start_traces
from jobs.telemetry.declared import WORKER
from jobs.telemetry.meters import Meters
from workers.chunks.services import Services
from workers.kept_tokenizer import kept_tokenizer
from workers.pool import serve_chunks
from workers.pooling.answerer import PoolAnswerer, PoolParts
from workers.pooling.lines import PoolModel
from workers.pooling.pool_answers import PoolAnswers
from workers.pooling.scores import ScoreModel
from workers.pooling.vectors import VectorModel

log = logging.getLogger(__name__)


def main(
    settings: Settings,
    *,
    model: str,
    path: str | None,
    folder: Path,
    purpose: Purpose,
    dtype: str,
    worker_id: str,
    sessions: sessionmaker[Session],
    hold_sessions: sessionmaker[Session],
    before_database: Callable[[], None],
) -> None:
    """Serve the model in `folder` as `model` until SIGTERM; the other arguments are those of `gpu_main.main`.

    Raise InputError if the folder cannot be served, ConflictError if the name has answered another kind of lines.
    """
    loaded = _load(folder, purpose, dtype)
    storage = Storage.of(settings)
    made = loaded.made_by(folder) if isinstance(loaded, VectorModel) else None
    meters = Meters(WORKER)
    serving.serve(meters.registry, host=settings.metrics_host, port=settings.metrics_port)
    traces = start_traces(settings.traces_url, role="worker", share_of_lines=settings.traces_lines)
    if path is not None:
        before_database()
    store_marker.bind(sessions, storage)
    kept = kept_tokenizer(storage, loaded.tokenizer if isinstance(loaded, VectorModel) else None)
    with transaction(sessions) as session:  # only now: a model that cannot be served must not be registered
        if path is not None:
            served_models.put_model(session, model, path)
        served_models.note_kind(session, model, loaded.kind)
        if made is not None:
            served_models.note_embedding(session, model, made)
        tokenizers.note_tokenizer(session, model, kept)

    services = Services(
        sessions=sessions, hold_sessions=hold_sessions, storage=storage, settings=settings, meters=meters, traces=traces
    )
    answers = PoolAnswers(loaded, name=model)
    answerer = PoolAnswerer(PoolParts(services=services, model=loaded, answers=answers))
    log.info("model ready purpose=%s max_tokens=%d", purpose, loaded.max_tokens)
    sys.exit(serve_chunks(answerer, services, model=model, worker_id=worker_id))


def _load(folder: Path, purpose: Purpose, dtype: str) -> PoolModel[Any]:
    if purpose is Purpose.EMBED and not (folder / "modules.json").is_file():
        raise InputError(
            f"{folder} has no modules.json, which defines how its encoder turns a text into a vector. Save the model "
            "with sentence-transformers, which writes it."
        )
    try:
        if purpose is Purpose.EMBED:
            return VectorModel(Embedder(folder, dtype=dtype))
        return ScoreModel(Reranker(folder, dtype=dtype))
    except EngineError as error:
        raise InputError(str(error)) from None
