"""How evenly something is shared. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def jain_index(shares: Sequence[float]) -> float:
    """Return 1 where all have the same and 1 / n where one has all (Jain, Chiu, Hawe, 1984); 1 where nobody has any."""
    squares = sum(share * share for share in shares)
    return float(sum(shares) ** 2 / (len(shares) * squares)) if squares else 1.0
