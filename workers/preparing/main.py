"""The prepare role: one process, several document readers, no engine."""

from __future__ import annotations

import logging
import sys

from features import meters_of
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.process.isolation import Isolation
from features.documents.extraction.errors import ExtractionError
from features.documents.settings import DocumentSettings
from features.retrieval.searching import Searcher
from features.retrieval.settings import RetrievalSettings
from jobs.database import connect, sessions
from jobs.errors import ServiceError
from jobs.ids import new_id
from jobs.lines.document_bodies import PREPARE_MODEL
from jobs.settings import MIB, Settings
from jobs.storage import Storage, store_marker
from jobs.telemetry import serving
from jobs.telemetry.collector import start_traces
from jobs.telemetry.declared import WORKER
from jobs.telemetry.meters import Meters
from workers.chunks.services import Services
from workers.pool import serve_chunks
from workers.preparing.answerer import DocumentAnswerer
from workers.preparing.documents import DocumentAnswers
from workers.preparing.lines import PrepareParts
from workers.preparing.passages import PassageAnswers
from workers.preparing.readers import ReaderPool
from workers.preparing.sources import Sources
from workers.preparing.tokenizers import Tokenizers

_CONNECTIONS_BESIDE_READERS = 4  # for claims, for the flushes of chunks, and for the spare reader
_HOLD_CONNECTIONS = 2  # for leases and heartbeats, as in a GPU worker


log = logging.getLogger(__name__)


def main(settings: Settings) -> None:
    """Prepare documents until SIGTERM. Raise ServiceError if readers lack a layer that the settings require."""
    reading = settings.of(DocumentSettings)
    check_isolation(is_required=reading.reader_isolation == "required")
    # A reader works on one chunk at a time: more open chunks would only wait.
    settings = settings.model_copy(update={"worker_chunks": reading.prepare_processes})
    maker = sessions(
        connect(settings.database_url, connections=reading.prepare_processes + _CONNECTIONS_BESIDE_READERS)
    )
    hold_maker = sessions(connect(settings.database_url, connections=_HOLD_CONNECTIONS))
    meters, limits, storage = Meters((*WORKER, *meters_of("prepare"))), limits_of(reading), Storage.of(settings)
    store_marker.bind(maker, storage)
    serving.serve(meters.registry, host=settings.metrics_host, port=settings.metrics_port)
    traces = start_traces(settings.traces_url, role="prepare", share_of_lines=settings.traces_lines)
    pool = ReaderPool(reading.prepare_processes, limits=limits)
    tokenizers = Tokenizers(storage)
    sources = Sources(sessions=maker, storage=storage, settings=settings)
    max_bytes = settings.of(RetrievalSettings).index_memory_mib * MIB
    passages = PassageAnswers(sessions=maker, searcher=Searcher(storage, max_bytes=max_bytes))

    services = Services(
        sessions=maker, hold_sessions=hold_maker, storage=storage, settings=settings, meters=meters, traces=traces
    )

    def make_parts(parsers: str) -> PrepareParts:
        answers = DocumentAnswers(
            sources=sources, storage=storage, tokenizers=tokenizers, parsers=parsers, limits=limits
        )
        return PrepareParts(services=services, pool=pool, answers=answers, passages=passages)

    answerer = DocumentAnswerer(pool, make_parts)
    sys.exit(serve_chunks(answerer, services, model=PREPARE_MODEL, worker_id=new_id("worker")))


def limits_of(settings: DocumentSettings) -> Limits:
    """Return the limits of reading one document."""
    return Limits(
        seconds=settings.reader_seconds,
        base_seconds=settings.reader_base_seconds,
        seconds_per_picture=settings.reader_seconds,
        memory_bytes=settings.reader_memory_mib * MIB,
        base_memory_bytes=settings.reader_base_memory_mib * MIB,
    )


def check_isolation(*, is_required: bool) -> None:
    """Log which layers of isolation readers lack. Raise ServiceError if they are required."""
    try:
        isolation = Isolation.probe()
    except ExtractionError as error:
        raise ServiceError(str(error)) from None
    if is_required and isolation.missing:
        raise ServiceError(
            f"TOKENMILL_READER_ISOLATION is required, but document readers lack {isolation.lacks}. {isolation.remedy} "
            "Or set it to best."
        )
    log.log(
        logging.WARNING if isolation.has_gap else logging.INFO,
        "readers are confined layers=%s lacking=%s",
        isolation.present,
        isolation.lacks or "nothing",
    )
