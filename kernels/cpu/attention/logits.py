"""Changes of attention's logits besides scaling, for compiled CPU code: soft caps and sinks."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu.attention.words import AT
from kernels.cpu.runtime.memory import bits_to_float64, exp2, float32_at, jit

_LOG2_E = 1.4426950408889634


@jit
def soft_cap_of(p: Any) -> Any:
    """Return the soft cap, 0 without one."""
    return bits_to_float64(p[AT.soft_cap])


@jit
def first_state(p: Any, head: int) -> Any:
    """Return a row's state before its first key, (largest score in base 2, sum of shares): its sink, or nothing."""
    if p[AT.sinks] == 0:
        return np.float32(-1e30), np.float32(0.0)
    return float32_at(p[AT.sinks])[head] * np.float32(_LOG2_E), np.float32(1.0)


@jit
def cap_scores(scores: Any, span: Any, factor: Any, height: Any) -> None:
    """Replace the scores in span = (first, last + 1) by height · tanh(score · factor)."""
    for n in range(span[0], span[1]):
        scores[n] = height * _tanh(scores[n] * factor)


@jit
def _tanh(x: Any) -> Any:
    """Compute tanh in float32 for vector code.

    Near 0, where exponentials would cancel, an odd polynomial: least squares on Chebyshev nodes, 1.1e-9 (relative)
    before rounding. A NaN stays NaN.
    """
    square = x * x
    p = np.float32(-6.3122900e-03)
    p = p * square + np.float32(2.1098820e-02)
    p = p * square + np.float32(-5.3859020e-02)
    p = p * square + np.float32(1.3332652e-01)
    p = p * square + np.float32(-3.3333320e-01)
    near = x + x * square * p
    shrunk = exp2(abs(x) * np.float32(-2.0 * _LOG2_E))
    far = (np.float32(1.0) - shrunk) / (np.float32(1.0) + shrunk)
    if square < np.float32(0.3):
        return near
    return far if x > np.float32(0.0) else -far
