"""What results cost: exact amounts, which are divided only where they are shown. No SQL.

A price is in micro-units of currency for a million tokens, or for a second of reading, so that tokens × price, and
microseconds × price, are pico-units (10⁻¹²) of currency: whole numbers, whose sum does not depend on how results were
grouped into ledger entries. A class has its prices in per cent of the model's, rounded to whole micro-units before
anything is billed with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from jobs.accounts.money import PICOS_A_MICRO, from_currency, rounded_micros
from jobs.settings import Settings
from jobs.states import Priority
from jobs.tables import Batch, Model

MODEL_COLUMNS = (
    "input_price_micros",
    "cached_input_price_micros",
    "output_price_micros",
    "urgent_price_percent",
    "bulk_price_percent",
)
"""Of a model, from which the prices of each class are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Micro-units of currency per million tokens, and per second of reading."""

    input_micros: int = 0
    cached_input_micros: int | None = None
    """Of prompt tokens that the prefix cache had, at most that of the others; None: the same."""
    output_micros: int = 0
    reading_micros: int = 0
    """Of a second for which readers of documents work: the same in all classes."""

    @classmethod
    def of(cls, model: Model | Mapping[str, Any], priority: Priority | str) -> Self:
        """Return the prices of a class, from a model or from its `MODEL_COLUMNS`."""
        found = {name: model[name] if isinstance(model, Mapping) else getattr(model, name) for name in MODEL_COLUMNS}
        bulk = found["bulk_price_percent"]  # and what overflows costs the same
        percents = {Priority.URGENT: found["urgent_price_percent"], Priority.BULK: bulk, Priority.OVERFLOW: bulk}
        percent = percents.get(Priority(priority), 100)
        cached = found["cached_input_price_micros"]
        return cls(
            input_micros=_scaled(found["input_price_micros"], percent),
            cached_input_micros=None if cached is None else _scaled(cached, percent),
            output_micros=_scaled(found["output_price_micros"], percent),
        )

    def cost_picos(
        self, *, input_tokens: int, output_tokens: int, cached_tokens: int = 0, reading_microseconds: int = 0
    ) -> int:
        """Return what these tokens, the cached ones of the input among them, and this time of reading cost."""
        cached_micros = self.input_micros if self.cached_input_micros is None else self.cached_input_micros
        prompt = (input_tokens - cached_tokens) * self.input_micros + cached_tokens * cached_micros
        return prompt + output_tokens * self.output_micros + reading_microseconds * self.reading_micros


def reading_price_micros(settings: Settings) -> int:
    """Return what a second of reading costs, in micro-units of currency."""
    return from_currency(settings.reading_price, digits=6)


def cost_picos(batch: Batch) -> int:
    """Return what was billed for a batch, by releases that rounded each ledger entry to micro-units too."""
    return int(batch.cost_micros) * PICOS_A_MICRO + int(batch.cost_picos)


def cost_micros(batch: Batch) -> int:
    """Return what a batch costs, rounded for programs that know no fractions."""
    return rounded_micros(cost_picos(batch))


def _scaled(micros: int, percent: int) -> int:
    return (micros * percent + 50) // 100
