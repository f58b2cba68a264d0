"""Meters of searches."""

from __future__ import annotations

from jobs.telemetry.meters import timer

INDEX_SEARCH_SECONDS = timer(
    "index_search",
    "Searching an index, its first reading included, without the wait for the question's vector.",
    "mode",
)

API = (INDEX_SEARCH_SECONDS,)
