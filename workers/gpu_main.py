"""The worker role: one process, one engine, one served model. Pooling models are passed to `workers.pooling`."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from engine.config import EngineConfig, ModelImpl
from engine.errors import EngineStartError, InvalidConfigError, ModelLoadError
from engine.models.paths import resolve_model_path
from engine.pooling.purposes import Purpose, purpose_of
from engine.process.messages import EngineInfo
from engine.process.parent import EngineProcess
from engine.suggested_sampling import suggested_sampling
from engine.tokenizer import load_tokenizer
from jobs import served_models
from jobs.database import BRIEF_SECONDS, connect, sessions, transaction
from jobs.engines.engine import ServingEngine
from jobs.errors import InputError, TokenmillError
from jobs.ids import new_id
from jobs.lines.endpoints import LineKind
from jobs.settings import Settings
from jobs.storage import Storage, store_marker, tokenizers
from jobs.telemetry import serving
from jobs.telemetry.collector import start_traces
from jobs.telemetry.declared import ENGINE_DEATHS, WORKER
from jobs.telemetry.meters import Meters
from workers.answers import AnswerMaker
from workers.chunks.adapter_folders import AdapterFolders
from workers.chunks.engine_answerer import EngineAnswerer
from workers.chunks.engine_parts import EngineParts
from workers.chunks.services import Services
from workers.drain import Drain
from workers.engine_host.host import EngineHost
from workers.engine_metrics import show_engine
from workers.kept_tokenizer import kept_tokenizer
from workers.model_files import fingerprint_of
from workers.pool import serve_chunks
from workers.prompts import PromptMaker
from workers.text_encoder import TextEncoder

log = logging.getLogger(__name__)

_HOLD_CONNECTIONS = 2
"""For leases and heartbeats: all flushes may wait for one tenant's locked row, and no other lease must expire then."""


def main(
    settings: Settings,
    *,
    model: str,
    path: str | None,
    engine: Callable[[str], EngineConfig],
    dtype: str = "auto",
    chat_template: Path | None = None,
    has_suggested_sampling: bool = False,
    worker_id: str | None = None,
    before_database: Callable[[], None] = lambda: None,
) -> None:
    """Serve `model` until SIGTERM. `path` registers it with that directory; without it, it must be registered.

    `engine` makes the engine's configuration from the model's path, but for its dtype, which is `dtype`, as is that of
    a pooling model; `chat_template` is a file with a template that replaces the model's; with `has_suggested_sampling`
    lines have the sampling of the model's generation_config.json where they set none; `worker_id` is that of a row that
    announces this worker; `before_database` is called just
    before the database is first needed, and may raise. Raise NotFoundError for an unknown model and InputError if its
    folder, tokenizer or template cannot be read; nothing is registered then.
    """
    maker = sessions(connect(settings.database_url, idle_seconds=BRIEF_SECONDS))
    hold_maker = sessions(connect(settings.database_url, connections=_HOLD_CONNECTIONS, idle_seconds=BRIEF_SECONDS))
    if path is None:
        before_database()
    # Resolved once, so that a restarted engine loads the same files even if the hub has changed.
    folder = _folder(_registered_path(maker, model) if path is None else served_models.stored_path(path))
    config, purpose = engine(str(folder)), _purpose(folder)
    if purpose is None:
        defaults = _suggested_sampling(folder) if has_suggested_sampling else {}
        config = _with_dtype(config, dtype)
        serve = partial(_serve_text, config=config, chat_template=chat_template, defaults=defaults)
    else:
        _require_plain(config, chat_template, purpose, has_suggested_sampling=has_suggested_sampling)
        # Imports torch, which in other workers only the engine process does.
        from workers.pooling.main import main as serve_pooled  # noqa: PLC0415

        serve = partial(serve_pooled, purpose=purpose, dtype=dtype)
    serve(
        settings,
        model=model,
        path=path,
        folder=folder,
        worker_id=worker_id or new_id("worker"),
        sessions=maker,
        hold_sessions=hold_maker,
        before_database=before_database,
    )


def _with_dtype(config: EngineConfig, dtype: str) -> EngineConfig:
    try:
        return replace(config, dtype=dtype)
    except InvalidConfigError as error:
        raise InputError(f"{config.model} is a model that generates: {error}") from None


def _serve_text(
    settings: Settings,
    *,
    model: str,
    path: str | None,
    folder: Path,
    config: EngineConfig,
    chat_template: Path | None,
    defaults: Mapping[str, Any],
    worker_id: str,
    sessions: sessionmaker[Session],
    hold_sessions: sessionmaker[Session],
    before_database: Callable[[], None],
) -> None:
    """Serve a model that generates, with an engine in a separate process; raise as `main` does."""
    meters = Meters(WORKER)
    serving.serve(meters.registry, host=settings.metrics_host, port=settings.metrics_port)
    leaving = Leaving(Drain())
    process = EngineProcess(config)
    fingerprint = fingerprint_of(
        folder, chat_template, defaults
    )  # before the engine loads the files, as they may change
    with suppress(EngineStartError):  # the pool starts it again and reports the error
        process.begin()  # it loads the model while this process loads the tokenizer and Celery
    host = EngineHost(
        process, on_gone=leaving, on_death=lambda: meters.count(ENGINE_DEATHS), on_broken=leaving.drain.take_out
    )
    show_engine(meters, lambda: host.stats, model=model, worker_id=worker_id)
    try:
        storage = Storage.of(settings)
        tokenizer = _tokenizer(folder, chat_template)
        services = Services(
            sessions=sessions,
            hold_sessions=hold_sessions,
            storage=storage,
            settings=settings,
            meters=meters,
            traces=start_traces(settings.traces_url, role="worker", share_of_lines=settings.traces_lines),
            drain=leaving.drain,
        )
        make_parts = partial(
            _parts,
            services=services,
            host=host,
            tokenizer=tokenizer,
            model=model,
            folder=folder,
            impl=config.model_impl,
            fingerprint=fingerprint,
            defaults=defaults,
        )
        if path is not None:
            before_database()
        store_marker.bind(sessions, storage)
        kept = kept_tokenizer(storage, TextEncoder(tokenizer).backend)
    except TokenmillError:
        process.close()
        raise
    with transaction(sessions) as session:  # only now: a model that cannot be served must not be registered
        if path is not None:
            served_models.put_model(session, model, path)
        served_models.note_kind(session, model, LineKind.GENERATE)
        tokenizers.note_tokenizer(session, model, kept)
    answerer = EngineAnswerer(host, make_parts, model=model)
    exit_code = serve_chunks(answerer, services, model=model, worker_id=worker_id)
    sys.exit(exit_code if leaving.reason is None else f"worker left: {leaving.reason}")


def _registered_path(maker: sessionmaker[Session], model: str) -> str:
    with transaction(maker) as session:
        return served_models.find_model(session, model).path


class Leaving:
    """Called when the engine is gone: drains the worker without grace by SIGTERM, and keeps the reason.

    The supervisor starts a new worker; the chunks that this one releases are not lost.
    """

    def __init__(self, drain: Drain) -> None:
        self.drain = drain
        self.reason: str | None = None

    def __call__(self, reason: str) -> None:
        log.error("worker leaves: the engine is gone reason=%s", reason)
        self.reason = reason
        self.drain.begin(0)  # no grace: nothing can finish without the engine
        os.kill(os.getpid(), signal.SIGTERM)


def _parts(
    info: EngineInfo,
    *,
    services: Services,
    host: EngineHost,
    tokenizer: Any,
    model: str,
    folder: Path,
    impl: ModelImpl,
    fingerprint: str,
    defaults: Mapping[str, Any],
) -> EngineParts:
    own = ServingEngine(version=version("tokenmill"), dtype=info.dtype)
    return EngineParts(
        services=services,
        host=host,
        prompts=PromptMaker(tokenizer, max_model_len=info.max_model_len, vocab_size=info.vocab_size, defaults=defaults),
        answers=AnswerMaker(tokenizer, model=model, engine=own),
        tokenizer=tokenizer,
        model_fingerprint=f"{fingerprint} {info.dtype}",
        adapters=AdapterFolders(services.sessions, model=model, folder=folder, impl=impl),
        engine=own,
    )


def _folder(path: str) -> Path:
    """Return the model's folder or file, downloaded if it is on a hub. Raise InputError with one sentence."""
    try:
        return resolve_model_path(path)
    except ModelLoadError as error:
        raise InputError(str(error)) from None


def _purpose(folder: Path) -> Purpose | None:
    try:
        return purpose_of(folder)
    except ModelLoadError as error:
        raise InputError(str(error)) from None


def _suggested_sampling(folder: Path) -> Mapping[str, Any]:
    try:
        return suggested_sampling(folder)
    except ModelLoadError as error:
        raise InputError(str(error)) from None


def _require_plain(
    config: EngineConfig, chat_template: Path | None, purpose: Purpose, *, has_suggested_sampling: bool
) -> None:
    """Raise InputError for engine options that a pooling model does not use: it runs on the CPU."""
    plain = EngineConfig(model=config.model, device=config.device)
    does = "embeds" if purpose is Purpose.EMBED else "reranks"
    if config != plain or config.device not in ("auto", "cpu"):
        raise InputError(
            f"{config.model} {does}, on the CPU without an engine. Leave out the engine's options, except --dtype."
        )
    if chat_template is not None:
        raise InputError(f"{config.model} {does} and has no chats. Leave --chat-template out.")
    if has_suggested_sampling:
        raise InputError(f"{config.model} {does} and samples nothing. Leave --suggested-sampling out.")


def _tokenizer(folder: Path, chat_template: Path | None) -> Any:
    """Load the tokenizer of a text model, with `chat_template` if given. Raise InputError with one sentence."""
    try:
        tokenizer = load_tokenizer(folder)
    except ModelLoadError as error:
        raise InputError(str(error)) from None
    if tokenizer is None:
        raise InputError(f"{folder} has no tokenizer, so text cannot be served. Put the model's tokenizer.json there.")
    if chat_template is not None:
        tokenizer.chat_template = _template(chat_template)
    return tokenizer


def _template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the chat template {path} cannot be read: {error}. Give a Jinja file.") from None
