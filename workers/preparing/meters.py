"""Meters of prepare workers."""

from __future__ import annotations

from jobs.telemetry.meters import counter

DOCUMENTS = counter(
    "documents",
    "Lines that a prepare worker has answered, by the work, `read` or `ground`, and by what came of it: `answered`, "
    "`fault` (ours), or the error's code.",
    "work",
    "outcome",
    alert='`rate(tokenmill_documents_total{outcome=~"parser_died|memory_limit|fault"}[15m]) > 0`: documents end what '
    "reads them; results of their batches say which",
)

PREPARE = (DOCUMENTS,)
