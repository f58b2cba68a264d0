"""Whether a worker claims chunks, from its row: neither drained by an operator, nor out of its own accord."""

from __future__ import annotations

OUT_REASON = "out_reason"
"""Key in a worker's engine stats: why it has stopped claiming on its own decision, as while its server is away."""

CLAIMS = f"(worker.draining_at IS NULL AND NOT coalesce(worker.engine_stats ? '{OUT_REASON}', FALSE))"
