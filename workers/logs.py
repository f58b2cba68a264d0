"""The log of roles that Celery runs in: ours alone, Celery installs no handlers.

How a record looks, `jobs.telemetry.logs` says.
"""

from __future__ import annotations

from typing import Any

from celery.signals import setup_logging

from jobs.telemetry import logs


def configure(role: str, *, is_json: bool) -> None:
    """Send all records to stderr; with `is_json` as JSON lines, with what Celery and the engine print."""
    logs.configure(role, is_json=is_json, has_relay=is_json)
    setup_logging.connect(_keep_ours, weak=False)


def _keep_ours(**_: Any) -> None:
    """Connected to Celery's signal: a receiver there means that logging is taken care of."""
