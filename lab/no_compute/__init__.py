"""An engine that computes nothing, in place of ours: the cost and behaviour of the service without that of answers.

All processes are the real ones, including the engine's with its pipe and the worker with its tokenizer; only the engine
object is replaced at startup. Nothing in the product imports this.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SEATS = 256
"""Default number of concurrent requests."""
_STAND_IN = Path(__file__).parent / "stand_in"
STEP_SECONDS, TOKENS_A_STEP = "NO_COMPUTE_STEP_SECONDS", "NO_COMPUTE_TOKENS_A_STEP"
NUM_SEATS, STATED = "NO_COMPUTE_SEATS", "NO_COMPUTE_STATED"
"""Variables of the engine's process."""
SERVER_SECONDS = "NO_COMPUTE_SERVER_SECONDS"
"""Variable of `lab.no_compute.server`: how long an answer takes."""


def environment(
    *, step_seconds: float = 0.0, tokens_a_step: int = 1_000_000, num_seats: int = SEATS, is_stated: bool = False
) -> Mapping[str, str]:
    """Return the environment variables with which all engine processes of a stack use this engine.

    It answers a prompt with the prompt's own tokens and the end token, `tokens_a_step` in each step; a step takes
    `step_seconds`, and nothing is computed. With `is_stated` prompts may state their answers (`lab.no_compute.stated`).
    """
    paths = [str(_STAND_IN), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        STEP_SECONDS: str(step_seconds),
        TOKENS_A_STEP: str(tokens_a_step),
        NUM_SEATS: str(num_seats),
        STATED: "1" if is_stated else "",
    }
