"""Claims of control workers on batches to validate or finalise; a claim ends when its batch changes state."""

from __future__ import annotations

from jobs.claims.claims import Claims
from jobs.claims.work import ClaimedWork
from jobs.states import BatchState
from jobs.tables import Batch

BatchWork = ClaimedWork[Batch]

VALIDATIONS = Claims(Batch, [BatchState.VALIDATING], ends_with_state=True)
FINALISATIONS = Claims(Batch, [BatchState.FINALIZING, BatchState.CANCELLING], ends_with_state=True)
