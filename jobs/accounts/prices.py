"""Cost of results: exact amounts, divided only for display. No SQL.

A price is in pico-units of currency (10⁻¹²) per token, or per microsecond of reading, so that tokens × price, and
microseconds × price, are whole pico-units, whose sum does not depend on how results were grouped into ledger entries. A
class has prices in per cent of the model's, rounded to whole pico-units before anything is billed with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from jobs.accounts.money import from_currency
from jobs.states import Priority

if TYPE_CHECKING:
    from jobs.settings import Settings
    from jobs.tables import Batch, Model

MODEL_COLUMNS = (
    "input_price_picos",
    "cached_input_price_picos",
    "output_price_picos",
    "urgent_price_percent",
    "bulk_price_percent",
)
"""Columns of a model from which the prices of each class are computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Pico-units of currency per token, and per microsecond of reading."""

    input_picos: int = 0
    cached_input_picos: int | None = None
    """Per prompt token found in the prefix cache, at most the price of others; None: the same."""
    output_picos: int = 0
    reading_picos: int = 0
    """Per microsecond of document reading: the same in all classes."""

    @classmethod
    def of(cls, model: Model | Mapping[str, Any], priority: Priority | str) -> Self:
        """Return the prices of a class, from a model or from its `MODEL_COLUMNS`."""
        columns = {name: model[name] if isinstance(model, Mapping) else getattr(model, name) for name in MODEL_COLUMNS}
        bulk = columns["bulk_price_percent"]  # overflow costs the same
        percents = {Priority.URGENT: columns["urgent_price_percent"], Priority.BULK: bulk, Priority.OVERFLOW: bulk}
        percent = percents.get(Priority(priority), 100)
        cached = columns["cached_input_price_picos"]
        return cls(
            input_picos=_scaled(columns["input_price_picos"], percent),
            cached_input_picos=None if cached is None else _scaled(cached, percent),
            output_picos=_scaled(columns["output_price_picos"], percent),
        )

    def cost_picos(
        self, *, input_tokens: int, output_tokens: int, cached_tokens: int = 0, reading_microseconds: int = 0
    ) -> int:
        """Return the cost of these tokens (`input_tokens` includes cached ones) and of this reading time."""
        cached_picos = self.input_picos if self.cached_input_picos is None else self.cached_input_picos
        prompt = (input_tokens - cached_tokens) * self.input_picos + cached_tokens * cached_picos
        return prompt + output_tokens * self.output_picos + reading_microseconds * self.reading_picos


def reading_price_picos(settings: Settings) -> int:
    """Return the price of a microsecond of reading, in pico-units of currency."""
    return from_currency(settings.reading_price, digits=6)  # the micro-units of a second


def cost_picos(batch: Batch) -> int:
    """Return what was billed for a batch."""
    return int(batch.cost_picos)


def _scaled(picos: int, percent: int) -> int:
    return (picos * percent + 50) // 100
