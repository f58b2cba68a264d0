"""How the queue holds batches whose prompts want passages."""

from __future__ import annotations

from features.retrieval.fills.lifecycle import hold, let_go, parts_of
from features.retrieval.fills.waits import waits_of
from jobs.hooks import Holder

HOLDER = Holder(hold=hold, let_go=let_go, parts_of=parts_of, waits_of=waits_of)
"""For `Feature.holders`."""
