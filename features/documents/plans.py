"""The plan of an extraction, checked from its owner's input."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from features.documents.extraction.course import job
from features.documents.extraction.course.job import ExtractJob
from features.documents.extraction.course.stored_plan import StoredPlan
from features.documents.extraction.errors import ExtractionError, SchemaError
from features.documents.extraction.scoring.calibration import Calibration
from features.documents.record_table import require_table
from features.pipelines.rows.outputs.schema_keywords import check_keywords
from jobs.errors import InputError

_LEAST_TOKENS, _MOST_TOKENS = 16, 1_000_000
"""Bounds on the length of an answer."""
_TAKEN = frozenset({"messages", "model", "response_format", "n", "context"})
"""Fields of a request that the schema, the documents and the model determine."""


def plan(schema: bytes, *, quotes: bool, params: Mapping[str, Any], max_fields: int) -> ExtractJob:
    """Return the job. Raises InputError for a schema that cannot be asked, naming the place, or a bad `max_tokens`."""
    _check_bound(params)
    try:
        planned = job.plan(schema, quotes=quotes, params=params, max_fields=max_fields)
    except SchemaError as error:
        raise InputError(str(error), param="schema", code="invalid_schema") from None
    check_keywords(planned.schema.output_schema())
    return planned


def check_params(params: Mapping[str, Any], *, taken: Collection[str] = ()) -> None:
    """Raise InputError for further fields of the requests that others determine: `taken` and those of every plan."""
    if names := sorted(params.keys() & (_TAKEN | set(taken))):
        raise InputError(
            f"params cannot have {names[0]!r}, which the schema, the documents, the model and the other options "
            "determine. Leave it out.",
            param="params",
            code="invalid_value",
        )


def _check_bound(params: Mapping[str, Any]) -> None:
    """Raise InputError for a missing bound on answers: a runaway answer would fill the rest of the context."""
    allowed = (
        f"Give a whole number from {_LEAST_TOKENS} to {_MOST_TOKENS:,}, or leave it out: an answer may then have twice "
        "the tokens that its fields are expected to take."
    )
    if "max_completion_tokens" in params:
        raise InputError(
            f"max_completion_tokens is given, and the bound on an answer is called max_tokens here. {allowed}",
            param="max_completion_tokens",
            code="invalid_value",
        )
    max_tokens = params.get("max_tokens", _LEAST_TOKENS)
    if type(max_tokens) is not int or not _LEAST_TOKENS <= max_tokens <= _MOST_TOKENS:
        raise InputError(
            f"max_tokens is {json.dumps(max_tokens)[:100]}, which is no bound on an answer. {allowed}",
            param="max_tokens",
            code="invalid_value",
        )


def read_calibration(text: str, name: str) -> Calibration:
    """Return the calibration written by `tokenmill extract calibrate`. Raises InputError."""
    try:
        return Calibration.from_json(text)
    except ExtractionError as error:
        raise InputError(f"{name}: {error}", param=name) from None


def check(stored: StoredPlan, *, parquet: bool) -> None:
    """Raise InputError for a plan that cannot be asked, or not written as a table if `parquet`."""
    planned = plan(stored.schema.encode(), quotes=stored.quotes, params=stored.params, max_fields=stored.max_fields)
    if stored.calibration is not None:
        read_calibration(stored.calibration, "calibration")
    if parquet:
        require_table(planned.schema)
