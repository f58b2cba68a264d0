"""schemathesis calls every operation with valid and invalid input, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.python._constants.orchestrator import make_constants_value_source
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from sqlalchemy.orm import Session
from starlette.types import ASGIApp, Receive, Scope, Send

from api.app import create_app
from jobs.accounts.keys import create_key
from jobs.accounts.tenants import create_tenant
from jobs.database import connect
from tests.all_settings import Settings
from tests.api.deployment import documented


class LateApp:
    """Exists when the tests are collected; the application behind it is set with its database."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


CONFIG = {"seed": 1, "generation": {"max-examples": 10, "deterministic": True, "database": "none"}}
SCHEMA = schemathesis.openapi.from_dict(documented(), config=SchemathesisConfig.from_dict(CONFIG))
LATE_APP = LateApp()
SCHEMA.app = LATE_APP
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]
FEEDBACK = FeedbackSources(constants_value_source=make_constants_value_source(SCHEMA))


@pytest.fixture(scope="module")
def authorization(new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Set the application with a database; return the header with a tenant's key."""
    settings = Settings(database_url=new_database(), storage_url=f"file://{tmp_path_factory.mktemp('objects')}")
    LATE_APP.app = create_app(settings)
    engine = connect(settings.database_url)
    with Session(engine) as session, session.begin():
        key = create_key(session, create_tenant(session, "acme").id)[1]
    engine.dispose()
    return {"Authorization": f"Bearer {key}"}


def test_the_schema_is_itself_valid() -> None:
    SCHEMA.validate()


NIGHTLY = ("/v1/pipelines", "/v1/schedules", "/v1/runs")
"""No schema describes valid cron expressions, time zones, templates or past moments: their own tests do."""


SAID_BY_NO_SCHEMA = frozenset(
    [
        "after",
        "calibration",
        "collection_id",
        "cover",
        "embedding_model",
        "exact",
        "examples",
        "file_ids",
        "group_by",
        "input_file_id",
        "input_sha256",
        "language",
        "overlap_tokens",
        "page",
        "prefix",
        "requests",
        "schema",
        "second_reading",
        "since",
        "store",
        "top_k",
        "url",
        "value",
    ]
)
"""Not in any schema: ids and pages belong to a tenant, times are ordered, exactly one of two fields is present, some
are of documents, of an index or of a header alone, exact counts are for endpoints that generate, a URL is public,
schemas of fields are described in words, and a value belongs to one decision only."""


def depends_on_state(case: Any, answer: Any) -> bool:
    """Return whether a refusal is outside any schema: existing objects, combined fields, an operator's limits."""
    if answer.status_code != 400:
        return bool(answer.status_code == 413)
    error = answer.json()["error"]
    return case.path.startswith(NIGHTLY) or error["param"] in SAID_BY_NO_SCHEMA or error["code"] == "invalid_body"


@pytest.mark.parametrize("operation", OPERATIONS, ids=[operation.label for operation in OPERATIONS])
def test_every_operation_keeps_its_schema(operation: Any, authorization: dict[str, str]) -> None:
    """Makes the inputs of one operation; `SCHEMA.parametrize` makes all when tests are collected, in each process."""
    keeps_its_schema: Any = build_operation_test(
        config=SCHEMA.config, operation=operation, test_func=check, given_kwargs={}, feedback=FEEDBACK
    )
    keeps_its_schema(authorization=authorization)


def check(case: Any, authorization: dict[str, str]) -> None:
    answer = case.call(headers=authorization)
    excluded = [positive_data_acceptance, negative_data_rejection] if depends_on_state(case, answer) else []
    case.validate_response(answer, headers=authorization, excluded_checks=excluded)
