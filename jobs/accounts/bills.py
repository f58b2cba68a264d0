"""What entries of the ledger ought to cost, by what they used and its prices: the same sum for all who compare."""

from __future__ import annotations

DUE_PICOS = """(
    CAST(input_tokens - cached_tokens AS numeric) * input_price_picos
    + CAST(cached_tokens AS numeric) * coalesce(cached_input_price_picos, input_price_picos)
    + CAST(output_tokens AS numeric) * output_price_picos
    + CAST(reading_microseconds AS numeric) * reading_price_picos
)"""
"""Of a row of `ledger`."""
