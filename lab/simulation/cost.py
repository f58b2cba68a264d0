"""Cost models: the duration of a step by its size, fitted to measured steps or from a device's rooflines. No torch.

A cost model replaces the forward pass in the simulator; it uses no requests and no queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import itemgetter
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.scheduling.step_load import StepLoad


class CostModel(Protocol):
    """Returns the duration of steps."""

    def seconds(self, load: StepLoad) -> float:
        """Return the step's duration in seconds, above zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCost:
    """A sum of non-negative parts, each in seconds per unit of the load."""

    per_step: float
    """Once per step."""
    per_token: float
    per_seq: float
    per_context_token: float
    per_shared_token: float
    """Instead of `per_context_token` for shared context: attention reads it from a nearer cache."""
    per_attended: float
    per_logit_row: float
    per_token_past_knee: float = 0.0
    """Extra cost of tokens past the first `knee_tokens`: up to there a step waits for the weights."""
    knee_tokens: int = 0

    def seconds(self, load: StepLoad) -> float:
        return (
            self.per_step
            + self.per_token * load.num_tokens
            + self.per_seq * load.num_seqs
            + self.per_context_token * (load.num_context_tokens - load.num_shared_tokens)
            + self.per_shared_token * load.num_shared_tokens
            + self.per_attended * load.num_attended
            + self.per_logit_row * load.num_logit_rows
            + self.per_token_past_knee * max(0, load.num_tokens - self.knee_tokens)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCost:
    """Measured costs of an engine, separate for steps of one token per sequence, which may run other kernels."""

    decode: LinearCost
    mixed: LinearCost

    def seconds(self, load: StepLoad) -> float:
        return (self.decode if load.num_tokens == load.num_seqs else self.mixed).seconds(load)


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineCost:
    """A step on a GPU that reaches the share `efficiency` of the limits of its memory and its arithmetic.

    Bytes: all weights once, and the KV of every context token. Operations: two per weight and token, four per head
    dimension, head and layer (`attention_width`) for each attended pair, two per element of a logit row.
    """

    bytes_per_second: float
    operations_per_second: float
    efficiency: float
    weight_bytes: float
    kv_bytes_per_token: float
    weight_count: float
    attention_width: float
    logit_row_operations: float

    def seconds(self, load: StepLoad) -> float:
        moved = self.weight_bytes + self.kv_bytes_per_token * load.num_context_tokens
        operations = (
            2.0 * self.weight_count * load.num_tokens
            + 4.0 * self.attention_width * load.num_attended
            + self.logit_row_operations * load.num_logit_rows
        )
        return max(moved / self.bytes_per_second, operations / self.operations_per_second) / self.efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class CoarseCost:
    """A cost for simulated tokens that stand for `stride` real ones, so that a step stands for as many steps.

    Contexts are `stride` times as long as simulated; each of these steps computes as many tokens as the simulated one.
    """

    cost: CostModel
    stride: int

    def seconds(self, load: StepLoad) -> float:
        real = replace(
            load,
            num_context_tokens=self.stride * load.num_context_tokens,
            num_shared_tokens=self.stride * load.num_shared_tokens,
            num_attended=self.stride * load.num_attended,
        )
        return self.stride * self.cost.seconds(real)


_NUM_REWEIGHINGS = 5
_LEAST_STEPS = 16
"""Twice as many steps as a LinearCost has parts: with fewer of a kind, that kind is fitted to all steps."""

_KNEES = (8, 16, 32, 64, 128, 256)
_WORTH_A_KNEE = 0.95
"""A knee is accepted if it leaves at most this share of the error without one."""

_USUAL_ERRORS = 3.0
"""A step with more than this many times the median error counts as interrupted, and gets less weight."""


def fit_measured_cost(loads: Sequence[StepLoad], seconds: Sequence[float]) -> MeasuredCost:
    """Fit each kind of step to its own measured steps."""
    both = fit_linear_cost(loads, seconds)
    fitted = []
    for is_decode in (True, False):
        own = [index for index, load in enumerate(loads) if (load.num_tokens == load.num_seqs) is is_decode]
        is_enough = len(own) >= _LEAST_STEPS
        fitted.append(
            fit_linear_cost([loads[index] for index in own], [seconds[index] for index in own]) if is_enough else both
        )
    return MeasuredCost(decode=fitted[0], mixed=fitted[1])


def fit_linear_cost(loads: Sequence[StepLoad], seconds: Sequence[float]) -> LinearCost:
    """Fit the parts to measured steps by least squares, weighted by predicted duration, none below zero.

    Needs at least as many steps as there are parts. A part that would be negative is set to zero and the others are
    fitted again, so that no load costs less than a smaller one.
    """
    assert len(loads) == len(seconds) >= len(fields(LinearCost)) - 1, f"{len(loads)} steps are too few to fit"
    measured = np.array(seconds, dtype=np.float64)
    straight, least_error = _fit(loads, measured, knee_tokens=0)
    bent, error = min((_fit(loads, measured, knee_tokens=knee) for knee in _KNEES), key=itemgetter(1))
    return bent if error < _WORTH_A_KNEE * least_error else straight


def _fit(loads: Sequence[StepLoad], measured: npt.NDArray[np.float64], *, knee_tokens: int) -> tuple[LinearCost, float]:
    """Return the best parts for a knee (none at 0 tokens), and their mean relative error."""
    rows = [
        (
            *(1, load.num_tokens, load.num_seqs),
            *(load.num_context_tokens - load.num_shared_tokens, load.num_shared_tokens),
            *(load.num_attended, load.num_logit_rows),
            max(0, load.num_tokens - knee_tokens) if knee_tokens else 0,
        )
        for load in loads
    ]
    matrix = np.array(rows, dtype=np.float64)
    predicted, trust = np.ones_like(measured), np.ones_like(measured)
    for _ in range(_NUM_REWEIGHINGS):
        # The noise of a step grows with its length, so errors are relative: to the predicted length, because relative
        # to the measured one interrupted steps would count for almost nothing.
        weights = trust / predicted
        parts = _non_negative_least_squares(matrix * weights[:, None], measured * weights)
        predicted = np.maximum(matrix @ parts, measured.min())
        errors = np.abs(matrix @ parts - measured) / predicted
        usual = _USUAL_ERRORS * float(np.median(errors)) + 1e-9
        trust = np.sqrt(np.minimum(1.0, usual / np.maximum(errors, usual)))
    names = [field.name for field in fields(LinearCost) if field.name != "knee_tokens"]
    cost = LinearCost(**dict(zip(names, parts.tolist(), strict=True)), knee_tokens=knee_tokens)
    return cost, float(np.mean(np.minimum(errors, usual)))


def _non_negative_least_squares(
    matrix: npt.NDArray[np.float64], target: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0.0] = 1.0
    used = list(range(matrix.shape[1]))
    while True:
        solution, *_ = np.linalg.lstsq(matrix[:, used] / scale[used], target, rcond=None)
        if not used or solution.min() >= 0.0:
            break
        del used[int(solution.argmin())]
    parts = np.zeros(matrix.shape[1])
    parts[used] = solution / scale[used]
    return parts
