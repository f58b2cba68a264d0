"""Fairness of shares."""

from __future__ import annotations

from collections.abc import Sequence


def jain_index(shares: Sequence[float]) -> float:
    """Return 1 if all shares are equal and 1 / n if one has all (Jain, Chiu, Hawe, 1984); 1 if all are zero."""
    squares = sum(share * share for share in shares)
    return float(sum(shares) ** 2 / (len(shares) * squares)) if squares else 1.0
