"""Fields and headers of calls that submit any kind of work."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from api.fields import STORABLE_PATTERN, Storable, storable
from jobs.batches.submission import (
    MAX_METADATA_KEY,
    MAX_METADATA_PAIRS,
    MAX_METADATA_VALUE,
    MAX_NAME,
    NAME_PATTERN,
    check_metadata,
)

# Only for the schema; `jobs.batches.submission` does the checks.
WINDOW_PATTERN = (
    "^(([1-9][0-9]{0,3}|[1-3][0-9]{4}|4[0-2][0-9]{3}|43[01][0-9]{2}|43200)m"  # 1m … 30d in minutes,
    "|([1-9][0-9]?|[1-6][0-9]{2}|7[01][0-9]|720)h"  # in hours,
    "|([1-9]|[12][0-9]|30)d)$"  # and in days
)
METADATA_SCHEMA = {
    "type": ["object", "null"],
    "maxProperties": MAX_METADATA_PAIRS,
    "propertyNames": {"maxLength": MAX_METADATA_KEY, "pattern": STORABLE_PATTERN},
    "additionalProperties": {"type": "string", "maxLength": MAX_METADATA_VALUE, "pattern": STORABLE_PATTERN},
}


def _few_pairs(value: object) -> object:
    """Refuse too many pairs before each of them gets its own error."""
    if isinstance(value, dict) and len(value) > MAX_METADATA_PAIRS:
        check_metadata(value)
    return value


BatchName = Annotated[
    str,
    AfterValidator(storable),
    Field(min_length=1, max_length=MAX_NAME, json_schema_extra={"pattern": NAME_PATTERN}),
]
"""Checked by `jobs.batches.submission.check_name`."""
CompletionWindow = Annotated[Storable, Field(max_length=20, json_schema_extra={"pattern": WINDOW_PATTERN})]
Metadata = Annotated[dict[Storable, Storable] | None, BeforeValidator(_few_pairs), WithJsonSchema(METADATA_SCHEMA)]

IdempotencyKey = Annotated[Storable | None, Header(min_length=1, max_length=255)]
# The official client counts its own retries here; it has no idempotency keys.
RetryCount = Annotated[int, Header(alias="x-stainless-retry-count", ge=0, le=1000)]
