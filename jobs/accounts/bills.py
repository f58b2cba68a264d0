"""The cost that ledger entries should have, from their usage and prices: one formula for all comparisons."""

from __future__ import annotations

DUE_PICOS = """(
    CAST(input_tokens - cached_tokens AS numeric) * input_price_picos
    + CAST(cached_tokens AS numeric) * coalesce(cached_input_price_picos, input_price_picos)
    + CAST(output_tokens AS numeric) * output_price_picos
    + CAST(reading_microseconds AS numeric) * reading_price_picos
)"""
"""For a row of `ledger`."""
