"""The options of a server outside the house, for `tokenmill worker` and `tokenmill up`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from cli.models.amounts import budget, price
from jobs.accounts.prices import Prices
from jobs.engines.engine import Spill
from jobs.errors import InputError

SpillFlag = Annotated[
    bool,
    typer.Option("--spill", help="The server is outside the house: it takes only late lines of tenants that allow it."),
]
SpillBudget = Annotated[str | None, typer.Option(metavar="AMOUNT", help="With --spill, the most to pay a day (UTC).")]
SpillInputPrice = Annotated[
    str | None,
    typer.Option("--input-price", metavar="AMOUNT", help="Its price of a million prompt tokens."),
]
SpillOutputPrice = Annotated[
    str | None,
    typer.Option("--output-price", metavar="AMOUNT", help="Its price of a million generated tokens."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillOptions:
    """The options as they are given."""

    spill: bool = False
    spill_budget: str | None = None
    input_price: str | None = None
    output_price: str | None = None

    def terms(self) -> Spill | None:
        """Return the terms; None for a server of the house. Raise InputError."""
        most, *prices = self._amounts()
        if not self.spill:
            if any(value is not None for value in (most, *prices)):
                raise InputError(
                    "--spill-budget, --input-price and --output-price are of a server outside the house. Add --spill, "
                    "or leave them out: `tokenmill models set` has the prices of tenants."
                )
            return None
        if most is None or None in prices:
            raise InputError(
                "--spill needs what the server may cost: --spill-budget for a day, and --input-price and "
                "--output-price for a million tokens."
            )
        input_picos, output_picos = (value or 0 for value in prices)
        return Spill(budget_picos=most, prices=Prices(input_picos=input_picos, output_picos=output_picos))

    def arguments(self) -> Iterator[str]:
        """Yield the worker's arguments."""
        if self.spill:
            yield "--spill"
        named = {"spill-budget": self.spill_budget, "input-price": self.input_price, "output-price": self.output_price}
        for name, value in named.items():
            if value is not None:
                yield from (f"--{name}", value)

    def _amounts(self) -> tuple[int | None, ...]:
        return (
            budget("--spill-budget", self.spill_budget),
            price("--input-price", self.input_price),
            price("--output-price", self.output_price),
        )
