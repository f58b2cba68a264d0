"""The ends that a flow expected while it ran, compared with the end that came."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedEnd:
    """The end that a flow expected: moments in Unix seconds."""

    at: float
    expected: int
    earliest: int
    latest: int


@dataclass(slots=True)
class ExpectedEnds:
    """What a flow's object told at each look."""

    looks: list[ExpectedEnd] = field(default_factory=list)

    def note(self, flow: Mapping[str, Any]) -> None:
        """Note what a flow's object tells of its end, if it does: a revision to compare with may tell none."""
        if flow.get("eta") is not None:
            self.looks.append(
                ExpectedEnd(
                    at=time.time(), expected=flow["eta"], earliest=flow["eta_earliest"], latest=flow["eta_latest"]
                )
            )

    def compared(self, ended_at: int) -> str:
        """Return how the expected ends compare with the end."""
        return compared(self.looks, ended_at) if self.looks else "no end was expected at any look"


def compared(looks: Sequence[ExpectedEnd], ended_at: int) -> str:
    """Return how often the end lay in the expected range, and how the times left compare with those expected."""
    left = [max(0.0, ended_at - one.at) for one in looks]
    times = sorted(each / max(1.0, one.expected - one.at) for each, one in zip(left, looks, strict=True))
    within = sum(one.earliest <= ended_at <= one.latest + 1 for one in looks) / len(left)
    middle = f"{times[len(times) // 10]:.2f} to {times[-1 - len(times) // 10]:.2f}"
    return f"{len(left)} looks, {within:.0%} within; eight of ten took {middle} times the expected time"
