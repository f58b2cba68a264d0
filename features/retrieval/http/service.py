"""State shared by the searches of an API process: indexes in memory, and vectors of questions."""

from __future__ import annotations

from dataclasses import dataclass, field

from api.services import Services
from features.retrieval.http.known_vectors import KnownVectors
from features.retrieval.searching import Searcher
from features.retrieval.settings import RetrievalSettings
from jobs.settings import MIB
from jobs.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchService:
    """One per API process."""

    searcher: Searcher
    known_vectors: KnownVectors = field(default_factory=KnownVectors)

    def close(self) -> None:
        """Do nothing: what is in memory ends with the process."""


def open_search(settings: RetrievalSettings, storage: Storage) -> SearchService:
    """Return the search service of an API process."""
    return SearchService(searcher=Searcher(storage, max_bytes=settings.index_memory_mib * MIB))


def search_of(services: Services) -> SearchService:
    """Return this process's result of `open_search`."""
    search = services.of_features["search"]
    assert isinstance(search, SearchService)
    return search
