"""The claim of a control worker on an extraction."""

from __future__ import annotations

from features.documents.tables import Extraction
from jobs.claims.work import ClaimedWork

ExtractionWork = ClaimedWork[Extraction]
