"""Log lines of every role: time, level, role, a fixed phrase, then fields. Never prompts, outputs or keys."""

from __future__ import annotations

import logging
import sys
from typing import Any

from celery.signals import setup_logging


def configure(role: str, *, level: int = logging.INFO) -> None:
    """Send all records to stderr, and keep Celery from installing handlers of its own."""
    logging.basicConfig(
        level=level,
        format=f"%(asctime)s %(levelname)s {role} %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S%z",
        stream=sys.stderr,
        force=True,
    )
    for chatty in ("celery", "kombu", "httpx", "obstore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    setup_logging.connect(_keep_ours, weak=False)


def _keep_ours(**_: Any) -> None:
    """Connected to Celery's signal: a receiver there means that logging is taken care of."""
