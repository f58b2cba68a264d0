"""What the step loop asks of the engine: the runner computes and draws, the recorder takes note. Plans nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from engine.outputs import TokenDelta
from engine.pending import PendingTokens
from engine.recorder import Recorder
from engine.runner import Runner
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence


class ModelCompute:
    """Compute steps with a model; what is told of a step are its deltas. `block_tables` are the scheduler's."""

    def __init__(self, runner: Runner, recorder: Recorder, block_tables: npt.NDArray[np.int32]) -> None:
        self._runner = runner
        self._recorder = recorder
        self._block_tables = block_tables

    def start(self, plan: StepPlan, pending: PendingTokens | None) -> Tensor | None:
        return self._runner.forward(plan, self._block_tables, pending=pending)

    def draw(self, plan: StepPlan, started: Tensor | None, rows: list[int] | None) -> PendingTokens | None:
        samples = self._runner.sample(plan, started, rows=rows)
        self._runner.work.observe(plan)
        return None if samples is None else PendingTokens(plan, samples)

    def take(self, plan: StepPlan, drawn: PendingTokens | None) -> list[tuple[Sequence, TokenDelta]]:
        return [] if drawn is None else self._recorder.append(plan, *drawn.samples.read())

    def finish(self, taken: list[tuple[Sequence, TokenDelta]]) -> list[TokenDelta]:
        return self._recorder.settle(taken)
