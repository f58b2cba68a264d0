"""Logging of the roles that run Celery, without Celery's own handlers; `jobs.telemetry.logs` defines the format."""

from __future__ import annotations

from typing import Any

from celery.signals import setup_logging

from jobs.telemetry import logs


def configure(role: str, *, is_json: bool) -> None:
    """Send all records to stderr; with `is_json` as JSON lines, including the output of Celery and the engine."""
    logs.configure(role, is_json=is_json, has_relay=is_json)
    setup_logging.connect(_keep_ours, weak=False)


def _keep_ours(**_: Any) -> None:
    """Do nothing: with a receiver on its signal, Celery leaves logging alone."""
