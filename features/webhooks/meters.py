"""Meters of webhooks."""

from __future__ import annotations

from jobs.telemetry.meters import counter, timer

WEBHOOK_SECONDS = timer("webhook_request", "Requests to webhooks' endpoints, answered or not.")
WEBHOOK_TRIES = counter(
    "webhook_tries",
    "Requests to webhooks' endpoints by the delivery's state afterwards: `delivered`, `pending` (to be retried), "
    "`failed` (given up), `taken` (claimed by another worker meanwhile).",
    "state",
)

CONTROL = (WEBHOOK_SECONDS, WEBHOOK_TRIES)
