"""Tests of the output of `tokenmill batch show`."""

from __future__ import annotations

from typing import Any

from cli.batches.fields import batch_fields

BATCH: dict[str, Any] = {
    "id": "batch_1",
    "object": "batch",
    "errors": None,
    "input_file_id": "file_1",
    "status": "completed",
    "output_file_id": None,
    "created_at": 1_700_000_000,
    "request_counts": {"total": 3, "completed": 2, "failed": 1, "truncated": 1},
    "usage": {
        "input_tokens": 12,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 30,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 42,
    },
    "metadata": {"team": "a=b", "run": "7"},
    "cost_micros": 99,
    "cost": "0.0000985",
    "currency": "EUR",
}


def test_a_batch_is_shown_with_dates_and_units_and_how_it_stands_first() -> None:
    assert list(batch_fields(BATCH).items()) == [
        ("status", "completed with failures"),
        ("lines", "2 done, 1 failed of 3"),
        ("truncated", "1 of the done: an answer ended by max_tokens or the context"),
        ("input", "12 tokens, 4 of them cached"),
        ("output", "30 tokens"),
        ("cost", "0.0000985 EUR"),
        ("id", "batch_1"),
        ("metadata", "team=a=b run=7"),
        ("created_at", "2023-11-14T22:13:20Z"),
        ("input_file_id", "file_1"),
    ]


def test_a_server_that_counts_no_tokens_is_shown_without_them() -> None:
    assert batch_fields({"status": "validating", "usage": None, "metadata": {}}) == {"status": "validating"}
