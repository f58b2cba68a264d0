"""The worker role of a server of somebody else: one process, one URL, one served model."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from engine.errors import ModelLoadError
from engine.models.paths import resolve_model_path
from engine.tokenizer import load_tokenizer
from jobs import served_models
from jobs.database import BRIEF_SECONDS, connect, sessions, transaction
from jobs.engines.engine import Spill
from jobs.errors import InputError
from jobs.ids import new_id
from jobs.lines.endpoints import LineKind
from jobs.settings import Settings
from jobs.storage import Storage, store_marker, tokenizers
from jobs.telemetry import serving
from jobs.telemetry.collector import start_traces
from jobs.telemetry.declared import WORKER
from jobs.telemetry.meters import Meters
from workers.chunks.services import Services
from workers.kept_tokenizer import kept_tokenizer
from workers.pool import serve_chunks
from workers.remote.answerer import RemoteAnswerer
from workers.remote.calls.call import Call
from workers.remote.calls.caller import Caller
from workers.remote.calls.pace import Pace
from workers.remote.checks import first_check, kind_of
from workers.remote.exchange import ANSWER_SECONDS, Address, Patience
from workers.remote.identity import AwayError, Identity, identify
from workers.remote.keys import address_of
from workers.remote.lines import RemoteParts
from workers.remote.probing.asking import Server
from workers.remote.probing.prober import Prober, Served, first_abilities
from workers.remote.sizes import ByteSizes, Sizes, TokenSizes
from workers.remote.waiting import WaitingWorker, wait_for
from workers.text_encoder import TextEncoder

log = logging.getLogger(__name__)

_HOLD_CONNECTIONS = 2
"""For leases and heartbeats, as in the worker of our own engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """The options of the command."""

    url: str
    key_file: Path | None = None
    server_model: str | None = None
    """The model's name at the server; None: the served name, or the server's only model."""
    tokenizer: str | None = None
    """A folder, GGUF file or hub id with the model's tokenizer and chat template."""
    max_model_len: int | None = None
    """For a server that does not tell its context."""
    max_seats: int | None = None
    """Most requests at once; None: by the kind of server."""
    answer_seconds: float = ANSWER_SECONDS
    spill: Spill | None = None
    """The terms for a server outside the house; None: it is of the house."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A server that answers, and how it is asked."""

    identity: Identity
    max_model_len: int
    check: Call
    answers_as: str


def main(
    settings: Settings,
    *,
    model: str | None,
    options: RemoteOptions,
    before_database: Callable[[], None] = lambda: None,
) -> None:
    """Serve a model of a server as `model`, by default under the server's own name, until SIGTERM.

    A server that does not answer yet is waited for, with metrics that show that the process is alive. Raise InputError
    or ServiceError if server, model or tokenizer cannot be used; nothing is registered then.
    """
    address = address_of(options.url, options.key_file)
    meters = Meters(WORKER)
    serving.serve(meters.registry, host=settings.metrics_host, port=settings.metrics_port)
    tokenizer = None if options.tokenizer is None else _tokenizer(options.tokenizer)
    find = partial(_find, address, options, model=model, has_tokenizer=tokenizer is not None)
    found = _found_or_away(find)
    before_database()
    worker_id, maker = new_id("worker"), sessions(connect(settings.database_url, idle_seconds=BRIEF_SECONDS))
    if isinstance(found, AwayError):
        waiting = WaitingWorker(
            worker_id=worker_id,
            model=model,
            sessions=maker,
            heartbeat_seconds=settings.heartbeat_seconds,
            spill=options.spill,
        )
        with waiting.shown():
            found = wait_for(find, found, show=waiting.show)
    services = _services(settings, maker, meters)
    store_marker.bind(maker, services.storage)
    sys.exit(
        _serve(services, address, found, options, tokenizer, model=model or found.identity.model, worker_id=worker_id)
    )


def _found_or_away(find: Callable[[], _Found]) -> _Found | AwayError:
    try:
        return find()
    except AwayError as error:
        return error


def _find(address: Address, options: RemoteOptions, *, model: str | None, has_tokenizer: bool) -> _Found:
    """Ask a server what it is. Raise AwayError if it does not answer now."""
    identity = identify(address, named=options.server_model, served=model)
    max_model_len = _context(identity, options)
    check, answers_as = first_check(address, identity, has_tokenizer=has_tokenizer)
    return _Found(identity=identity, max_model_len=max_model_len, check=check, answers_as=answers_as)


def _serve(
    services: Services,
    address: Address,
    found: _Found,
    options: RemoteOptions,
    tokenizer: Any | None,
    *,
    model: str,
    worker_id: str,
) -> int:
    """Register the model and answer its chunks until SIGTERM; return the exit code."""
    identity, kind = found.identity, kind_of(found.check)
    _register(services, model, address.url, tokenizer, kind=kind)
    known = first_abilities(identity, kind, spill=options.spill)
    parts = RemoteParts(
        services=services,
        caller=_caller(address, identity, found.check, options),
        identity=identity,
        abilities=known,
        sizes=_sizes(tokenizer, found.max_model_len, is_outside=options.spill is not None),
        answers_as=found.answers_as,
    )
    own = Served(
        model=model,
        server=Server(
            address=address,
            dialect=identity.dialect,
            model=identity.model,
            is_chat=found.check.path == "chat/completions",
            kind=kind,
        ),
        owner=worker_id,
        identify=lambda: identify(address, named=identity.model, served=None),
    )
    prober = Prober(own, known, services.sessions, leave=services.drain.take_out)
    answerer = RemoteAnswerer(parts, max_model_len=found.max_model_len, prober=prober)
    is_hinted = options.spill is None  # a hint that it does not follow would be kept from workers of the house
    return serve_chunks(answerer, services, model=model, worker_id=worker_id, is_hinted=is_hinted)


def _services(settings: Settings, maker: sessionmaker[Session], meters: Meters) -> Services:
    hold = connect(settings.database_url, connections=_HOLD_CONNECTIONS, idle_seconds=BRIEF_SECONDS)
    return Services(
        sessions=maker,
        hold_sessions=sessions(hold),
        storage=Storage.of(settings),
        settings=settings,
        meters=meters,
        traces=start_traces(settings.traces_url, role="worker", share_of_lines=settings.traces_lines),
    )


def _register(services: Services, model: str, url: str, tokenizer: Any | None, *, kind: LineKind) -> None:
    """Register the model if it is new: one that our own engine serves, too, keeps its path and its tokenizer."""
    kept = None if tokenizer is None else kept_tokenizer(services.storage, TextEncoder(tokenizer).backend)
    with transaction(services.sessions) as session:
        if served_models.known_model(session, model) is None:
            served_models.put_model(session, model, url)
        served_models.note_kind(session, model, kind)
        if kept is not None:
            tokenizers.note_tokenizer(session, model, kept)


def _caller(address: Address, identity: Identity, check: Call, options: RemoteOptions) -> Caller:
    dialect = identity.dialect
    most = options.max_seats or max(dialect.max_seats, identity.num_slots or 0)
    pace = Pace(start=identity.num_slots or dialect.num_seats, most=most)
    return Caller(address, pace, check, patience=Patience(answer_seconds=options.answer_seconds))


def _sizes(tokenizer: Any | None, max_model_len: int, *, is_outside: bool) -> Sizes:
    if tokenizer is None:
        return ByteSizes(max_model_len=max_model_len, is_outside=is_outside)
    return TokenSizes(tokenizer, max_model_len=max_model_len, is_outside=is_outside)


def _context(identity: Identity, options: RemoteOptions) -> int:
    """Return the context; a smaller one than the server's own may be chosen, a larger one would be refused there."""
    told, chosen = identity.max_model_len, options.max_model_len
    if chosen is None and told is None:
        raise InputError("the server does not tell the model's context; give its tokens with --max-model-len.")
    if chosen is not None and told is not None and chosen > told:
        raise InputError(f"--max-model-len is {chosen}; the server allows {told}. Lower it or leave it out.")
    context = told if chosen is None else chosen
    assert context is not None
    return context


def _tokenizer(path: str) -> Any:
    try:
        tokenizer = load_tokenizer(resolve_model_path(path))
    except ModelLoadError as error:
        raise InputError(str(error)) from None
    if tokenizer is None:
        raise InputError(f"--tokenizer {path} has no tokenizer. Give the model's folder, FILE.gguf or hub id.")
    return tokenizer
