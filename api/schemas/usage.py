"""`/v1/usage`: sums of a tenant's usage."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from io import StringIO
from typing import Literal, Self

from api.schemas.wire import WireModel
from jobs.accounts.money import in_currency, rounded_micros
from jobs.accounts.usage import Usage


class UsageObject(WireModel):
    object: Literal["usage"] = "usage"
    day: str | None
    """Day in UTC, as YYYY-MM-DD; null, like the following fields, if usage is not grouped by it."""
    model: str | None
    """Also null for work on documents, which needs no model."""
    key_id: str | None
    """The key that submitted the batches; also null for batches that no key submitted."""
    key: str | None
    """The key's first characters."""
    batch_id: str | None
    lines: int
    """Lines that have a result, including failed ones; work on documents is not counted."""
    truncated: int | None
    """Lines with an answer that `max_tokens` or the context ended."""
    input_tokens: int
    """Prompt tokens, including cached ones."""
    cached_tokens: int
    """Prompt tokens from the prefix cache."""
    output_tokens: int
    """Tokens of answers, including those of thoughts."""
    reasoning_tokens: int
    """Tokens of thoughts among them."""
    cost: str
    """Exact, in units of the currency."""
    cost_micros: int
    """The same in micro-units of currency, rounded."""
    gpu_seconds: float
    """Worker time: the time in which a worker has chunks open, divided among them by computed tokens."""
    document_steps: int
    """How often documents were read, cut, searched or grounded."""
    reading_seconds: float
    """Processor time that readers spent on these documents."""
    reading_cost: str
    """The part of the cost for these seconds: exact, in units of the currency."""

    @classmethod
    def of(cls, usage: Usage) -> Self:
        return cls(
            day=usage.day,
            model=usage.model,
            key_id=usage.key_id,
            key=usage.key_hint,
            batch_id=usage.batch_id,
            lines=usage.num_results,
            truncated=usage.num_truncated,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cost=in_currency(usage.cost_picos),
            cost_micros=rounded_micros(usage.cost_picos),
            gpu_seconds=usage.worker_microseconds / 1e6,
            document_steps=usage.num_document_steps,
            reading_seconds=usage.reading_microseconds / 1e6,
            reading_cost=in_currency(usage.reading_picos),
        )


class UsagePageObject(WireModel):
    object: Literal["list"] = "list"
    since: str
    """The first day."""
    until: str
    """The last day."""
    currency: str
    data: list[UsageObject]
    has_more: bool
    next_page: str | None
    """The `page` of the next page; null if there is none."""


def as_csv(data: Iterable[UsageObject], *, currency: str) -> str:
    """Return the rows as comma-separated values with a header; null is empty."""
    text = StringIO()
    names = [name for name in UsageObject.model_fields if name != "object"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, "currency"])
    writer.writerows([*(getattr(row, name) for name in names), currency] for row in data)
    return text.getvalue()
