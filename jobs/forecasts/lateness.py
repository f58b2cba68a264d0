"""Whether the workers of the house will miss a batch's deadline, so that its lines may leave. Pure.

Servers outside the house count neither as workers nor for the speed: lines leave only as far as the house is too slow.
"""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_PART = 3 / 4
"""Part of a batch's window after which it is late if its end is unknown, as it is at risk then."""
GONE_SECONDS = 300.0
"""A batch is late once no worker of the house has run for so long of its time: longer than a restart, or a start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """The workers of the house that serve a model."""

    num_claiming: int
    """Live workers that are neither drained nor out of their own accord."""
    num_able: int
    """The number of these that may answer the batch."""
    gone_seconds: float | None
    """Time since the last heartbeat of any worker; infinite for a scaled model of which no worker is known, as one will
    start. None: no worker is known, and the model is not scaled."""


def is_late(seconds: float | None, house: House, *, left_seconds: float, window_seconds: float) -> bool:
    """Return whether a batch that is forecast to end in `seconds`, None where unknown, will miss its deadline.

    It lies `left_seconds` ahead, at the end of the batch's whole window.
    """
    is_last_part = left_seconds < window_seconds * (1 - WINDOW_PART)
    if not house.num_claiming:
        gone, waited = house.gone_seconds, window_seconds - left_seconds
        return is_last_part or gone is None or min(gone, waited) >= GONE_SECONDS
    if not house.num_able:  # it stays with an engine that is not of the house
        return True
    return is_last_part if seconds is None else seconds > left_seconds
