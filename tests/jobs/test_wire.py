from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from openai.types import Batch as OpenAIBatch
from openai.types import FileObject
from openai.types import Model as OpenAIModel
from sqlalchemy.orm import Session

from jobs import served_models
from jobs.tables import Tenant
from jobs.wire import batch_json, file_json, model_json, unix_seconds

Make = Callable[..., Any]
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 999999, tzinfo=UTC)


def test_a_batch_has_every_field_of_the_contract(session: Session, make_batch: Make) -> None:
    errors = [{"code": "url_mismatch", "message": "no", "param": "url", "line": 3}]
    batch = make_batch(
        state="failed", created_at=MOMENT, expires_at=MOMENT, failed_at=MOMENT, errors=errors, num_unlisted_errors=4,
        num_requests=9, num_completed=5, num_failed=4, input_tokens=10, cached_tokens=2, output_tokens=20,
        request_metadata={"a": "b"}, model="m", priority="bulk", invalid_lines="skip", cost_micros=7,
    )  # fmt: skip
    wire = batch_json(batch)
    seconds = 1767323045
    typed = OpenAIBatch.model_validate(wire, strict=True)
    assert (typed.status, typed.object, typed.created_at, typed.failed_at) == ("failed", "batch", seconds, seconds)
    assert typed.completed_at is None
    assert typed.errors is not None
    assert typed.errors.data is not None
    assert (typed.errors.data[0].code, typed.errors.data[0].line) == ("url_mismatch", 3)
    assert wire["errors"]["num_unlisted"] == 4
    assert typed.request_counts is not None
    assert typed.request_counts.model_dump() == {"total": 9, "completed": 5, "failed": 4}
    assert typed.usage is not None
    assert (typed.usage.total_tokens, typed.usage.input_tokens_details.cached_tokens) == (30, 2)
    assert (wire["priority"], wire["invalid_lines"], wire["cost_micros"]) == ("bulk", "skip", 7)
    assert set(OpenAIBatch.model_fields) <= set(wire)


def test_a_new_batch_has_no_errors_and_no_files(make_batch: Make) -> None:
    typed = OpenAIBatch.model_validate(batch_json(make_batch()), strict=True)
    assert (typed.errors, typed.output_file_id, typed.error_file_id, typed.metadata) == (None, None, None, None)
    assert typed.status == "validating"


def test_a_file_is_the_clients_file(make_file: Make) -> None:
    typed = FileObject.model_validate(file_json(make_file(created_at=MOMENT, expires_at=MOMENT)), strict=True)
    assert (typed.bytes, typed.purpose, typed.status, typed.filename) == (1000, "batch", "processed", "in.jsonl")
    assert typed.expires_at == typed.created_at == 1767323045


def test_a_model_is_the_clients_model(session: Session, tenant: Tenant) -> None:
    typed = OpenAIModel.model_validate(model_json(served_models.add_model(session, "org/m", "/m")), strict=True)
    assert (typed.id, typed.object, typed.owned_by) == ("org/m", "model", "tokenmill")


def test_seconds_are_rounded_down() -> None:
    assert unix_seconds(MOMENT) == 1767323045
    assert unix_seconds(None) is None
