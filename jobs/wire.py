"""Our rows as the objects of the wire: the official fields first, then ours. Times are integer Unix seconds."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from jobs.tables import Batch, File, Model


def file_json(file: File) -> dict[str, Any]:
    """Return the File object of the wire."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": unix_seconds(file.created_at),
        "expires_at": unix_seconds(file.expires_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",  # files are immutable and usable at once
        "status_details": None,
    }


def model_json(model: Model) -> dict[str, Any]:
    """Return the Model object of the wire."""
    return {
        "id": model.name,
        "object": "model",
        "created": unix_seconds(model.created_at),
        "owned_by": "tokenmill",
        "input_price_micros": model.input_price_micros,
        "output_price_micros": model.output_price_micros,
    }


def batch_json(batch: Batch) -> dict[str, Any]:
    """Return the Batch object of the wire, with our `priority`, `invalid_lines` and `cost_micros`."""
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": _errors_json(batch),
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": str(batch.state),
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": unix_seconds(batch.created_at),
        "in_progress_at": unix_seconds(batch.in_progress_at),
        "expires_at": unix_seconds(batch.expires_at),
        "finalizing_at": unix_seconds(batch.finalizing_at),
        "completed_at": unix_seconds(batch.completed_at),
        "failed_at": unix_seconds(batch.failed_at),
        "expired_at": unix_seconds(batch.expired_at),
        "cancelling_at": unix_seconds(batch.cancelling_at),
        "cancelled_at": unix_seconds(batch.cancelled_at),
        "request_counts": {
            "total": batch.num_requests,
            "completed": batch.num_completed,
            "failed": batch.num_failed,
        },
        "usage": _usage_json(batch),
        "metadata": batch.request_metadata,
        "priority": str(batch.priority),
        "invalid_lines": str(batch.invalid_lines),
        "cost_micros": batch.cost_micros,
    }


def unix_seconds(moment: datetime | None) -> int | None:
    """Return whole seconds, rounded down: what a client compares with its own clock."""
    return None if moment is None else int(moment.timestamp())


def _errors_json(batch: Batch) -> dict[str, Any] | None:
    if not batch.errors:
        return None
    return {"object": "list", "data": batch.errors, "num_unlisted": batch.num_unlisted_errors}


def _usage_json(batch: Batch) -> dict[str, Any]:
    return {
        "input_tokens": batch.input_tokens,
        "input_tokens_details": {"cached_tokens": batch.cached_tokens},
        "output_tokens": batch.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},  # the engine counts no reasoning apart
        "total_tokens": batch.input_tokens + batch.output_tokens,
    }
