"""What the past would have cost at other prices, as a table."""

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


def print_repriced(found: Sequence[Repriced], asked: Period, *, currency: str) -> None:
    """Print a row for each tenant, and the sum of all where people read it. Amounts are exact."""
    from jobs.accounts.repricing import total

    numbers = ("lines", *_TOKENS, f"billed {currency}", f"at these prices {currency}", "difference")
    print_table(
        ("tenant", *numbers),
        [(part.tenant, *_shown(part)) for part in found],
        numbers=numbers,
        total=("total", *_shown(total(found))) if found else None,
    )
    if sys.stdout.isatty() and not found:
        print(f"nothing of it was used from {asked.since} to {asked.until} (UTC)")


def _shown(part: Repriced) -> list[str]:

    counts = (part.num_results, part.input_tokens, part.cached_tokens, part.output_tokens)
    amounts = (part.billed_picos, part.repriced_picos, part.repriced_picos - part.billed_picos)
    return [*(f"{count:,}" if sys.stdout.isatty() else str(count) for count in counts), *map(in_currency, amounts)]
