"""Values with features, generated from a seed."""

from __future__ import annotations

import random

from features.documents.extraction.grounding.spans import Status
from features.documents.extraction.passes.findings import Agreement, ValueLogprobs
from features.documents.extraction.scoring.calibration import Judged
from features.documents.extraction.scoring.features import Features


def sure(**changes: object) -> Features:
    """Return the features of a value without any doubt, except for `changes`."""
    known: dict[str, object] = {
        "is_null": False,
        "status": Status.EXACT,
        "likeness": 1.0,
        "stands_in_quote": True,
        "agreement": Agreement.AGREES,
        "logprobs": ValueLogprobs(mean=-0.01, minimum=-0.05, margin=4.0),
    }
    return Features(**{**known, **changes})  # type: ignore[arg-type]


def judged(count: int, seed: int = 0) -> list[Judged]:
    """Return values of which one in four is wrong; wrong ones are mostly unsure, but not always."""
    rng = random.Random(seed)
    return [_judged(rng, index) for index in range(count)]


def _judged(rng: random.Random, index: int) -> Judged:
    is_right = rng.random() < 0.75
    mean = -abs(rng.gauss(0.05 if is_right else 0.8, 0.2))
    status = Status.EXACT if rng.random() < (0.95 if is_right else 0.4) else Status.NONE
    agreement = Agreement.AGREES if rng.random() < (0.9 if is_right else 0.2) else Agreement.DIFFERS
    logprobs = ValueLogprobs(mean=mean, minimum=2 * mean, margin=1.0)
    features = sure(status=status, agreement=agreement, logprobs=logprobs)
    return Judged(features=features, is_right=is_right, document=f"document {index // 5}")
