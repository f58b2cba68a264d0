"""An engine that computes nothing, in the place of ours: what the service costs, or does, where answers cost nothing.

Every process is the real one, the engine's with its pipe and the worker with its tokenizer too; what it loads and runs
is replaced as it starts. Nothing of the product knows of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SEATS = 256
"""Requests that run at once, unless told otherwise."""
_STAND_IN = Path(__file__).parent / "stand_in"
STEP_SECONDS, TOKENS_A_STEP = "NO_COMPUTE_STEP_SECONDS", "NO_COMPUTE_TOKENS_A_STEP"
NUM_SEATS = "NO_COMPUTE_SEATS"
"""Variables of the engine's process."""


def environment(
    *, step_seconds: float = 0.0, tokens_a_step: int = 1_000_000, num_seats: int = SEATS
) -> Mapping[str, str]:
    """Return the variables with which every engine process of a stack has this engine.

    It answers a prompt with its own tokens and the end, so many a step; a step takes so many seconds, and none of them
    is computed.
    """
    paths = [str(_STAND_IN), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        STEP_SECONDS: str(step_seconds),
        TOKENS_A_STEP: str(tokens_a_step),
        NUM_SEATS: str(num_seats),
    }
