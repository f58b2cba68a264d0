"""Claims on batches: which control worker validates one or writes its files. One is over once the batch moves on."""

from __future__ import annotations

from jobs.claims.claims import Claims
from jobs.claims.work import ClaimedWork
from jobs.states import BatchState
from jobs.tables import Batch

BatchWork = ClaimedWork[Batch]

VALIDATIONS = Claims(Batch, [BatchState.VALIDATING], ends_with_state=True)
FINALISATIONS = Claims(Batch, [BatchState.FINALIZING, BatchState.CANCELLING], ends_with_state=True)
