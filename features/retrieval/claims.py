"""The claim of a control worker on an index."""

from __future__ import annotations

from features.retrieval.tables import PassageIndex
from jobs.claims.work import ClaimedWork

IndexWork = ClaimedWork[PassageIndex]
