"""What entries of the ledger ought to cost, by what they used and its prices: the same sum for all who compare."""

from __future__ import annotations

DUE_PICOS = """(
    CAST(input_tokens - cached_tokens AS numeric) * input_price_micros
    + CAST(cached_tokens AS numeric) * coalesce(cached_input_price_micros, input_price_micros)
    + CAST(output_tokens AS numeric) * output_price_micros
    + CAST(reading_microseconds AS numeric) * reading_price_micros
)"""
"""Of a row of `ledger`: null where a release wrote it that knew no prices here."""
