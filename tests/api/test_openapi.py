"""Tests of /openapi.json, and that the API's answers match it."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.datastructures import Headers

import api
import features
from api.app import create_app
from api.scopes import OPEN, SCOPES
from api.submission_fields import WINDOW_PATTERN
from jobs.call_limits import parse_window
from jobs.errors import InputError
from jobs.settings import Settings
from jobs.states import Scope
from tests.api.deployment import documented
from tests.api.raised import Name, raised_by
from tests.api.witness import Witness

ENVELOPE = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorEnvelope"}}}
EVERYWHERE = {"200", "400", "405", "500", "503", "505"}
WITH_A_KEY = {"401", "403"}
OPENAI_NAMES = {
    "createFile",
    "listFiles",
    "retrieveFile",
    "deleteFile",
    "downloadFile",
    "createBatch",
    "listBatches",
    "retrieveBatch",
    "cancelBatch",
    "listModels",
    "retrieveModel",
    "createUpload",
    "addUploadPart",
    "completeUpload",
    "cancelUpload",
}

REQUESTS = {
    "CreateBatchBody",
    "ExpiresAfter",
    "RetryBatchBody",
    "ChangeBatchBody",
    "EstimateBody",
    "CreateUploadBody",
    "CompleteUploadBody",
    "CreateEndpointBody",
    "ChangeEndpointBody",
    "RotateSecretBody",
    "TryOutBody",
    "PipelineBody",
    "ChangePipelineBody",
    "ScalingBody",
    "ScheduleBody",
    "ChangeScheduleBody",
    "BackfillBody",
    "RunBody",
    "ReportSubscriptionBody",
    "RowsBody",
    "CollectionBody",
    "DocumentsBody",
    "CreateExtractionBody",
    "CreateIndexBody",
    "ClaimBody",
    "DecisionBody",
    "ItemBody",
    "CalibrationBody",
    "CreateTenantBody",
    "ChangeTenantBody",
    "DisableTenantBody",
    "CreateKeyBody",
    "RotateKeyBody",
    "BudgetBody",
    "PricesBody",
    "AddModelBody",
}
MORE_FORMS = {"readUsage": ["text/csv"]}


@pytest.fixture(scope="module")
def witness() -> Witness:
    app = create_app(Settings(database_url="postgresql://nobody@127.0.0.1:1/nothing"))
    return Witness(app, documented())


def test_no_setting_changes_the_schema() -> None:
    given = Settings(dashboard=False, api_operator_key="a long secret", currency="CHF", max_file_bytes=1)
    assert create_app(given).openapi() == documented()


def operations(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, item in schema["paths"].items():
        for operation in item.values():
            yield path, operation


def test_operations_have_openais_names_and_the_failures_that_any_request_may_meet(witness: Witness) -> None:
    for path, operation in operations(witness.schema):
        expected = EVERYWHERE | WITH_A_KEY if path.startswith("/v1/") else EVERYWHERE
        assert expected <= operation["responses"].keys(), operation["operationId"]
    assert {operation["operationId"] for _, operation in operations(witness.schema)} >= OPENAI_NAMES


def endpoints() -> Iterator[tuple[str, list[Name]]]:
    """Yield each operation's id with its endpoint and dependencies."""
    modules = [
        importlib.import_module(module.name)
        for package in (api, features)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    routers = {id(value): value for module in modules for value in vars(module).values()}.values()
    for route in (route for router in routers if isinstance(router, APIRouter) for route in router.routes):
        if type(route) is APIRoute and route.operation_id is not None:
            calls = [route.endpoint, *(depends.dependency for depends in route.dependencies)]
            names = [Name(call.__module__, call.__qualname__.partition(".")[0]) for call in calls if call is not None]
            yield route.operation_id, names


NOT_RAISED = {
    ("createExtraction", 410),  # workers read the examples, which may be gone, through another method of the same class
    ("createOperatorKey", 404),  # of no tenant, so none is looked up
    ("createTenant", 404),  # the budget of a tenant that exists, or was just made
    ("listTenants", 404),
    ("readQuota", 404),
}
"""Errors in the source that no request gets."""


def test_every_error_that_an_endpoint_may_raise_is_foreseen(witness: Witness) -> None:
    foreseen = {operation["operationId"]: operation["responses"] for _, operation in operations(witness.schema)}
    missing = {
        (name, error.status)
        for name, calls in endpoints()
        for error in raised_by(*calls)
        if str(error.status) not in foreseen[name]
    }
    # rates belong to tenants
    without_a_tenant = {(name, 429) for name, scope in SCOPES.items() if scope is Scope.ADMIN}
    assert missing - without_a_tenant == NOT_RAISED


def test_what_reads_a_body_foresees_one_that_is_late_or_too_large(witness: Witness) -> None:
    reading = [operation for _, operation in operations(witness.schema) if "requestBody" in operation]
    missing = {one["operationId"]: {"408", "413"} - one["responses"].keys() for one in reading}
    assert {name: statuses for name, statuses in missing.items() if statuses} == {}


def test_every_failure_is_described_as_the_error_envelope(witness: Witness) -> None:
    for _, operation in operations(witness.schema):
        failures = {status: answer["content"] for status, answer in operation["responses"].items() if status >= "400"}
        assert failures == dict.fromkeys(failures, ENVELOPE)
    assert {"HTTPValidationError", "ValidationError"}.isdisjoint(witness.schema["components"]["schemas"])


def test_every_operation_is_open_or_says_which_scope_a_key_needs_and_none_is_forgotten(witness: Witness) -> None:
    scheme = witness.schema["components"]["securitySchemes"]["key"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    keyed = {operation["operationId"]: operation.get("security") for _, operation in operations(witness.schema)}
    assert keyed == {name: [{"key": [scope]}] for name, scope in SCOPES.items()} | dict.fromkeys(OPEN)


def test_every_success_has_a_schema_or_its_own_content_type(witness: Witness) -> None:
    other = {}
    for _, operation in operations(witness.schema):
        (media_type, media), *more = operation["responses"]["200"]["content"].items()
        assert [name for name, _ in more] == MORE_FORMS.get(operation["operationId"], [])
        if media_type == "application/json":
            assert media["schema"]["$ref"].startswith("#/components/schemas/")
        else:
            other[operation["operationId"]] = media_type
    assert other == {
        "downloadFile": "application/octet-stream",
        "listGold": "application/x-ndjson",
        "listRecords": "application/x-ndjson",
        "listResults": "application/x-ndjson",
        "searchLines": "application/x-ndjson",
        "retrievePageImage": "image/png",
        "readMetrics": "text/plain",
        "streamBatch": "text/event-stream",
    }


def test_every_answer_and_every_field_of_an_answer_is_always_there(witness: Witness) -> None:
    schemas = witness.schema["components"]["schemas"]
    sent = {name: schema for name, schema in schemas.items() if schema["type"] == "object" and name not in REQUESTS}
    missing = {name: schema["properties"].keys() - schema["required"] for name, schema in sent.items()}
    # a record equals the line of the output file if nothing has changed
    as_in_the_file = {"RecordLine": {"item_changes"}}
    assert {name: fields for name, fields in missing.items() if fields} == as_in_the_file
    for _, operation in operations(witness.schema):
        assert all("x-request-id" in answer["headers"] for answer in operation["responses"].values())


def test_the_schema_allows_the_windows_that_are_allowed() -> None:
    for unit in "mhd":
        for number in [*range(1500), *range(42990, 43300), 99999, 100000]:
            is_described = re.search(WINDOW_PATTERN, f"{number}{unit}") is not None
            with nullcontext() if is_described else pytest.raises(InputError):
                parse_window(f"{number}{unit}")


def test_requests_are_offered_the_classes_that_a_batch_may_ask_for_and_answers_know_all(witness: Witness) -> None:
    schemas = witness.schema["components"]["schemas"]
    offered = {
        name: re.findall(r"schemas/(\w+)'", str(schemas[name]["properties"]["priority"]))
        for name in schemas
        if "priority" in schemas[name].get("properties", {})
    }
    requests = {"CreateBatchBody", "RetryBatchBody", "ChangeBatchBody", "EstimateBody", "CreateExtractionBody"}
    requests.add("CreateIndexBody")
    assert {name for name, used in offered.items() if used == ["AskedPriority"]} == requests
    assert {name for name, used in offered.items() if used == ["Priority"]} == {
        "BatchObject",
        "ExtractionObject",
        "IndexObject",
    }
    assert schemas["AskedPriority"]["enum"] == ["urgent", "normal", "bulk"]
    assert schemas["Priority"]["enum"] == ["urgent", "normal", "bulk", "overflow"]


@pytest.mark.parametrize(
    ("status", "headers", "body", "surprise"),
    [
        (418, {}, b"", "listModels documents"),
        (200, {"content-type": "text/html"}, b"", "text/html is not among"),
        (200, {"content-type": "application/json"}, b'{"object":"list"}', '"data" is a required property'),
        (503, {"content-type": "application/json"}, b'{"detail":"x"}', "has no retry-after"),
    ],
)
def test_an_answer_that_is_not_documented_is_seen(
    witness: Witness, status: int, headers: dict[str, str], body: bytes, surprise: str
) -> None:
    start = {"status": status, "headers": Headers({"x-request-id": "req_1", **headers}).raw}
    witness.judge({"method": "GET", "path": "/v1/models"}, start, body)
    assert surprise in witness.surprises.pop(0)
    witness.surprises.clear()
