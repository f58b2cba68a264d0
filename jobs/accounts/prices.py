"""What results cost: exact amounts, which are divided only where they are shown. No SQL.

A price is in pico-units of currency (10⁻¹²) for one token, or for a microsecond of reading, so that tokens × price, and
microseconds × price, are whole pico-units, whose sum does not depend on how results were grouped into ledger entries.
A class has its prices in per cent of the model's, rounded to whole pico-units before anything is billed with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from jobs.accounts.money import from_currency
from jobs.settings import Settings
from jobs.states import Priority
from jobs.tables import Batch, Model

MODEL_COLUMNS = (
    "input_price_picos",
    "cached_input_price_picos",
    "output_price_picos",
    "urgent_price_percent",
    "bulk_price_percent",
)
"""Of a model, from which the prices of each class are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Pico-units of currency per token, and per microsecond of reading."""

    input_picos: int = 0
    cached_input_picos: int | None = None
    """Of prompt tokens that the prefix cache had, at most that of the others; None: the same."""
    output_picos: int = 0
    reading_picos: int = 0
    """Of a microsecond for which readers of documents work: the same in all classes."""

    @classmethod
    def of(cls, model: Model | Mapping[str, Any], priority: Priority | str) -> Self:
        """Return the prices of a class, from a model or from its `MODEL_COLUMNS`."""
        found = {name: model[name] if isinstance(model, Mapping) else getattr(model, name) for name in MODEL_COLUMNS}
        bulk = found["bulk_price_percent"]  # and what overflows costs the same
        percents = {Priority.URGENT: found["urgent_price_percent"], Priority.BULK: bulk, Priority.OVERFLOW: bulk}
        percent = percents.get(Priority(priority), 100)
        cached = found["cached_input_price_picos"]
        return cls(
            input_picos=_scaled(found["input_price_picos"], percent),
            cached_input_picos=None if cached is None else _scaled(cached, percent),
            output_picos=_scaled(found["output_price_picos"], percent),
        )

    def cost_picos(
        self, *, input_tokens: int, output_tokens: int, cached_tokens: int = 0, reading_microseconds: int = 0
    ) -> int:
        """Return what these tokens, the cached ones of the input among them, and this time of reading cost."""
        cached_picos = self.input_picos if self.cached_input_picos is None else self.cached_input_picos
        prompt = (input_tokens - cached_tokens) * self.input_picos + cached_tokens * cached_picos
        return prompt + output_tokens * self.output_picos + reading_microseconds * self.reading_picos


def reading_price_picos(settings: Settings) -> int:
    """Return what a microsecond of reading costs, in pico-units of currency."""
    return from_currency(settings.reading_price, digits=6)  # the micro-units of a second


def cost_picos(batch: Batch) -> int:
    """Return what was billed for a batch."""
    return int(batch.cost_picos)


def _scaled(picos: int, percent: int) -> int:
    return (picos * percent + 50) // 100
