"""What results cost: exact amounts, which are divided only where they are shown. No SQL.

A price is in micro-units of currency for a million tokens, so tokens × price are pico-units (10⁻¹²) of currency: whole
numbers, whose sum does not depend on how results were grouped into ledger entries.
"""

from __future__ import annotations

from dataclasses import dataclass

from jobs.accounts.money import PICOS_A_MICRO, rounded_micros
from jobs.tables import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Micro-units of currency per million tokens."""

    input_micros: int = 0
    output_micros: int = 0

    def cost_picos(self, *, input_tokens: int, output_tokens: int) -> int:
        """Return what these tokens cost."""
        return input_tokens * self.input_micros + output_tokens * self.output_micros


def cost_picos(batch: Batch) -> int:
    """Return what was billed for a batch, by releases that rounded each ledger entry to micro-units too."""
    return int(batch.cost_micros) * PICOS_A_MICRO + int(batch.cost_picos)


def cost_micros(batch: Batch) -> int:
    """Return what a batch costs, rounded for programs that know no fractions."""
    return rounded_micros(cost_picos(batch))
