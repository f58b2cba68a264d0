"""Sentences that tell owners what a batch waits for. Pure."""

from __future__ import annotations

from jobs.counted import counted
from jobs.forecasts.finish_times import Forecast


def standing(expected: Forecast, *, num_workers: int, tokens_per_second: float | None) -> str | None:
    """Return what is served before a batch, and how fast; None where nothing is."""
    if not expected.tokens_ahead:
        return None
    ahead = " and ".join(
        f"{counted(max(round(tokens), 1), 'token')} of class {name}" for name, tokens in expected.tokens_ahead.items()
    )
    workers = counted(num_workers, "worker")
    speed = "" if tokens_per_second is None else f" at {tokens_per_second:,.0f} tokens/s"
    return f"Behind {ahead}; your share is {_part(expected.share)} of {workers}{speed}."


def _part(share: float) -> str:
    """Format a share as a fraction where it is one of a whole number, otherwise in percent."""
    parts = round(1 / share)
    if abs(share * parts - 1) < 1e-6:
        return "all" if parts == 1 else f"1/{parts}"
    return f"{share:.0%}"
