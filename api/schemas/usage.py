"""`/v1/usage`: what a tenant has used, as sums."""

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
    """Of UTC, as YYYY-MM-DD; null, as the following ones, where it is not grouped by."""
    model: str | None
    """Null also for work on documents, which no model does."""
    key_id: str | None
    """Of the key that submitted the batches; also null for batches that no key submitted."""
    key: str | None
    """Its first characters."""
    batch_id: str | None
    lines: int
    """That have a result, failed ones included; work on documents is none of them."""
    truncated: int | None
    """Of the lines: `max_tokens` or the context ended an answer."""
    input_tokens: int
    """Of prompts, cached ones included."""
    cached_tokens: int
    """Prompt tokens that the prefix cache had."""
    output_tokens: int
    cost: str
    """Exact, in units of the currency."""
    cost_micros: int
    """The same in micro-units of currency, rounded."""
    gpu_seconds: float
    """Of workers: the time in which a worker has chunks open, divided among them by the tokens that it computes."""
    document_steps: int
    """Documents that were read, cut, searched or grounded, each time."""
    reading_seconds: float
    """Of processor time for which readers worked at these documents."""
    reading_cost: str
    """Of the cost, that of these seconds: exact, in units of the currency."""

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
    """The first day, and"""
    until: str
    """the last one."""
    currency: str
    data: list[UsageObject]
    has_more: bool
    next_page: str | None
    """The `page` of the next page; null where there is none."""


def as_csv(data: Iterable[UsageObject], *, currency: str) -> str:
    """Return the same as comma-separated values, with a header; what is null is empty."""
    text = StringIO()
    names = [name for name in UsageObject.model_fields if name != "object"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, "currency"])
    writer.writerows([*(getattr(row, name) for name in names), currency] for row in data)
    return text.getvalue()
