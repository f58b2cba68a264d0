"""The table of past usage at other prices."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cli.table import print_table
from jobs.accounts.money import in_currency

if TYPE_CHECKING:
    from jobs.accounts.repricing import Repriced
    from jobs.accounts.usage import Period

_TOKENS = ("input", "cached", "output")


def print_repriced(tenants: Sequence[Repriced], days: Period, *, currency: str) -> None:
    """Print a row per tenant, and in a terminal the total. Amounts are exact."""
    from jobs.accounts.repricing import total

    numbers = ("lines", *_TOKENS, f"billed {currency}", f"at these prices {currency}", "difference")
    print_table(
        ("tenant", *numbers),
        [(part.tenant, *_shown(part)) for part in tenants],
        numbers=numbers,
        total=("total", *_shown(total(tenants))) if tenants else None,
    )
    if sys.stdout.isatty() and not tenants:
        print(f"the model was not used from {days.since} to {days.until} (UTC)")


def _shown(part: Repriced) -> list[str]:

    counts = (part.num_results, part.input_tokens, part.cached_tokens, part.output_tokens)
    amounts = (part.billed_picos, part.repriced_picos, part.repriced_picos - part.billed_picos)
    return [*(f"{count:,}" if sys.stdout.isatty() else str(count) for count in counts), *map(in_currency, amounts)]
