"""Scope of an audit, and its findings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One violation."""

    subject: str
    """The id of a batch or tenant."""
    message: str
    """A sentence with the numbers."""


IS_DAY_DROPPED = "CAST(batch.created_at AT TIME ZONE 'UTC' AS date) <> ALL(CAST(:days AS date[]))"
IS_ASKED = "(CAST(:batch_id AS text) IS NULL OR batch.id = :batch_id)"
# Batches whose day was dropped at the end of retention have no results to compare with.
IN_SCOPE = f"{IS_ASKED} AND (NOT ({IS_DAY_DROPPED}) OR batch.results_deleted_at IS NOT NULL)"
ARE_RESULTS_GONE = f"(batch.results_deleted_at IS NOT NULL OR {IS_DAY_DROPPED})"
