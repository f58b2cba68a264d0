"""The progress bar of finished lines: one part for completed and one for failed ones. Pure functions."""

from __future__ import annotations

from api.dashboard.live import Shown

_WHOLE = 1000
_SHORTEST = 10
"""Minimum length of the failed part, so that one line of a million is visible."""


def bar(prefix: str, *, completed: int, failed: int, total: int) -> dict[str, Shown]:
    """Return where the two parts end, in thousandths, by the names of their places; 0 means no such part."""
    if not total:
        return _ends(prefix, completed=0, failed=0)
    ends = round(_WHOLE * (completed + failed) / total)
    if not failed:
        return _ends(prefix, completed=ends, failed=0)
    length = max(round(_WHOLE * failed / total), _SHORTEST)
    return _ends(prefix, completed=max(ends - length, 0), failed=max(ends, length))


def full_bar(prefix: str) -> dict[str, Shown]:
    """Return the bar of a finished object without lines."""
    return _ends(prefix, completed=_WHOLE, failed=0)


def _ends(prefix: str, *, completed: int, failed: int) -> dict[str, Shown]:
    return {f"{prefix}.done": str(completed), f"{prefix}.failing": str(failed)}
