"""Meters of prepare workers."""

from __future__ import annotations

from itertools import product

from jobs.telemetry.meters import counter

DOCUMENTS = counter(
    "documents",
    "Lines that a prepare worker has answered, by work (`read`, `ground`, `cut` or `find`) and by outcome: "
    "`answered`, `fault` (an internal error), or the error's code.",
    "work",
    "outcome",
    alert='`rate(tokenmill_documents_total{outcome=~"parser_died|memory_limit|fault"}[15m]) > 0`: documents end their '
    "readers; the results of their batches name them",
    zeros=product(("read", "ground", "cut", "find"), ("parser_died", "memory_limit", "fault")),
)

PREPARE = (DOCUMENTS,)
