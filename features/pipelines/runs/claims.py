"""The claim of a control worker on a run."""

from __future__ import annotations

from features.pipelines.tables import Run
from jobs.claims.work import ClaimedWork

RunWork = ClaimedWork[Run]
