"""Tests of the wire's objects: as read by the official client, and as bytes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from openai.types import Batch as ClientBatch
from openai.types import FileObject as ClientFile
from openai.types import Model as ClientModel

from api.errors import error_response
from api.schemas.batches import BatchObject
from api.schemas.files import DeletedFile, FileObject, FilePage
from api.schemas.models import ModelList, ModelObject
from api.schemas.wire import WireModel, unix_seconds, unix_seconds_or_none
from jobs.forecasts.outlooks import Outlook
from jobs.tables import Batch, File, Model

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 999999, tzinfo=UTC)
SECONDS = 1767323045


def a_batch(**columns: Any) -> Batch:
    """Return a new batch as Postgres would, without Postgres; keywords override its columns."""
    counts = ("num_unlisted_errors", "num_requests", "num_completed", "num_failed", "num_truncated", "input_tokens")
    zeros = dict.fromkeys(
        (*counts, "cached_tokens", "output_tokens", "reasoning_tokens", "cost_picos", "num_spilled"), 0
    )
    texts = {"endpoint": "/v1/completions", "completion_window": "24h", "priority": "normal", "invalid_lines": "fail"}
    texts["uncovered_lines"] = "wait"
    texts["engine_choice"] = "same"
    texts["engine"] = "vllm"
    zeros["is_reproducible"] = False
    names = {"id": "batch_1", "input_file_id": "file_1", "state": "validating"}
    return Batch(**zeros | texts | names | {"created_at": MOMENT, "expires_at": MOMENT} | columns)


def a_file(**columns: Any) -> File:
    values = {"id": "file_1", "size_bytes": 1000, "filename": "in.jsonl", "purpose": "batch", "created_at": MOMENT}
    return File(**values | columns)


def a_model() -> Model:
    return Model(
        name="org/m", created_at=MOMENT, input_price_picos=3_000_000, output_price_picos=4,
        cached_input_price_picos=500_000, urgent_price_percent=200, bulk_price_percent=50, serves="generate",
    )  # fmt: skip


def as_sent(answer: WireModel) -> dict[str, Any]:
    return answer.model_dump(mode="json")


def test_a_batch_has_every_field_of_the_contract() -> None:
    errors = [{"code": "url_mismatch", "message": "no", "param": "url", "line": 3}]
    batch = a_batch(
        state="failed", failed_at=MOMENT, errors=errors, num_unlisted_errors=4, num_requests=9, num_completed=5,
        num_failed=4, num_truncated=2, input_tokens=10, cached_tokens=2, output_tokens=20, reasoning_tokens=6,
        request_metadata={"a": "b"}, model="m", priority="bulk", invalid_lines="skip", cost_picos=6_500_000,
    )  # fmt: skip
    sent = as_sent(BatchObject.of(batch, Outlook(), name=None, currency="EUR"))
    typed = ClientBatch.model_validate(sent, strict=True)
    assert (typed.status, typed.object, typed.created_at, typed.failed_at) == ("failed", "batch", SECONDS, SECONDS)
    assert typed.completed_at is None
    assert typed.errors is not None
    assert typed.errors.data is not None
    assert (typed.errors.data[0].code, typed.errors.data[0].line) == ("url_mismatch", 3)
    assert sent["errors"]["num_unlisted"] == 4
    assert typed.request_counts is not None
    assert typed.request_counts.model_dump() == {"total": 9, "completed": 5, "failed": 4, "truncated": 2}
    assert typed.usage is not None
    assert (typed.usage.total_tokens, typed.usage.input_tokens_details.cached_tokens) == (30, 2)
    assert typed.usage.output_tokens_details.reasoning_tokens == 6
    assert (sent["priority"], sent["invalid_lines"], sent["cost_micros"]) == ("bulk", "skip", 7)
    assert (sent["cost"], sent["currency"]) == ("0.0000065", "EUR")
    assert set(ClientBatch.model_fields) <= set(sent)


def test_a_new_batch_has_no_errors_and_no_files() -> None:
    typed = ClientBatch.model_validate(
        as_sent(BatchObject.of(a_batch(), Outlook(), name=None, currency="EUR")), strict=True
    )
    assert (typed.errors, typed.output_file_id, typed.error_file_id, typed.metadata) == (None, None, None, None)
    assert typed.status == "validating"


def test_a_file_is_the_clients_file() -> None:
    typed = ClientFile.model_validate(as_sent(FileObject.of(a_file(expires_at=MOMENT))), strict=True)
    assert (typed.bytes, typed.purpose, typed.status, typed.filename) == (1000, "batch", "processed", "in.jsonl")
    assert typed.expires_at == typed.created_at == SECONDS


def test_a_model_is_the_clients_model() -> None:
    typed = ClientModel.model_validate(as_sent(ModelObject.of(a_model(), currency="EUR")), strict=True)
    assert (typed.id, typed.object, typed.owned_by) == ("org/m", "model", "tokenmill")


def test_seconds_are_rounded_down() -> None:
    assert unix_seconds(MOMENT) == SECONDS
    assert unix_seconds_or_none(None) is None


def test_a_batch_is_sent_in_the_order_of_the_contract_with_nulls() -> None:
    errors = [{"code": "empty_file", "line": None, "param": None, "message": "ö"}]
    batch = a_batch(state="failed", errors=errors, failed_at=MOMENT, request_metadata={"z": "1", "a": "ü"})
    outlook = Outlook(
        ends_at=MOMENT,
        earliest_at=MOMENT - timedelta(seconds=9),
        latest_at=MOMENT + timedelta(seconds=9),
        position=3,
        running_lines=64,
        waits_for="w",
    )
    up = SECONDS + 1  # future times are rounded up
    assert BatchObject.of(batch, outlook, name="papers", currency="EUR").model_dump_json() == (
        '{"id":"batch_1","object":"batch","endpoint":"/v1/completions","model":null,"errors":{"object":"list","data":'
        '[{"code":"empty_file","line":null,"param":null,"message":"ö"}],"num_unlisted":0},"input_file_id":"file_1",'
        '"completion_window":"24h","status":"failed","output_file_id":null,"error_file_id":null,'
        f'"created_at":{SECONDS},"in_progress_at":null,"expires_at":{SECONDS},"finalizing_at":null,'
        f'"completed_at":null,"failed_at":{SECONDS},"expired_at":null,"cancelling_at":null,"cancelled_at":null,'
        '"request_counts":{"total":0,"completed":0,"failed":0,"truncated":0},"usage":{"input_tokens":0,"input_tokens_details":'
        '{"cached_tokens":0},"output_tokens":0,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":0},'
        '"metadata":{"z":"1","a":"ü"},"name":"papers","priority":"normal","invalid_lines":"fail",'
        '"uncovered_lines":"wait",'
        '"engine":"same","reproducible":false,"answered_by":"vllm","spilled_lines":0,"retry_of":null,"after":null,"filled_file_id":null,"cost_micros":0,"cost":"0.00","currency":"EUR",'
        f'"eta":{up},"eta_earliest":{up - 9},"eta_latest":{up + 9},"position":3,"running_lines":64,"waits_for":"w",'
        '"budget_warning":null}'
    )


def test_a_batch_whose_prompts_were_filled_names_the_input_that_was_given_and_the_one_that_runs() -> None:
    shown = BatchObject.of(a_batch(source_file_id="file_0"), Outlook(), name=None, currency="EUR")
    assert (shown.input_file_id, shown.filled_file_id) == ("file_0", "file_1")


def test_the_other_objects_are_sent_in_the_order_of_the_contract_with_nulls() -> None:
    file = (
        f'{{"id":"file_1","object":"file","bytes":1000,"created_at":{SECONDS},"expires_at":null,'
        '"filename":"in.jsonl","purpose":"batch","status":"processed","status_details":null}'
    )
    model = (
        f'{{"id":"org/m","object":"model","created":{SECONDS},"owned_by":"tokenmill",'
        '"input_price_micros":3000000,"output_price_micros":4,"currency":"EUR","max_model_len":null,"parent":null,"endpoints":["/v1/chat/completions","/v1/completions"],"prices":{'
        '"urgent":{"input":"6.00","cached_input":"1.00","output":"0.000008"},'
        '"normal":{"input":"3.00","cached_input":"0.50","output":"0.000004"},'
        '"bulk":{"input":"1.50","cached_input":"0.25","output":"0.000002"},'
        '"overflow":{"input":"1.50","cached_input":"0.25","output":"0.000002"}}}'
    )
    page = FilePage.of([FileObject.of(a_file())], has_more=True)
    ends = '"first_id":"file_1","last_id":"file_1","has_more":true'
    assert page.model_dump_json() == f'{{"object":"list","data":[{file}],{ends}}}'
    models = ModelList(data=[ModelObject.of(a_model(), currency="EUR")])
    assert models.model_dump_json() == f'{{"object":"list","data":[{model}]}}'
    assert DeletedFile(id="file_1").model_dump_json() == '{"id":"file_1","object":"file","deleted":true}'
    empty = FilePage.of([], has_more=False)
    assert empty.model_dump_json() == '{"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false}'


def test_an_error_is_sent_with_all_four_keys() -> None:
    answer = error_response(400, "ö", code=None)
    text = bytes(answer.body).decode()
    assert text == ('{"error":{"message":"ö","type":"invalid_request_error","param":null,"code":null}}')
    assert answer.headers["content-type"] == "application/json"
