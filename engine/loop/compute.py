"""The model side of the step loop: the runner computes and draws, the recorder appends tokens."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from engine.loop.pending import PendingTokens
from engine.loop.recorder import Recorded, Recorder
from engine.loop.work import WorkCounter
from engine.outputs import TokenDelta
from engine.sampling.sampler import Samples
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import LoadedAdapter
from engine.scheduling.seat_table import SeatTable
from engine.scheduling.swap import SwapSpace


class StepRunner(Protocol):
    """Computes steps for the engine: engine/loop/runner.py, or a fake in a test."""

    @property
    def num_kv_blocks(self) -> int:
        """Return how many blocks requests can use."""

    @property
    def products(self) -> str | None:
        """Return the names of the products that multiply the model's weights; None if they were not chosen here."""

    @property
    def swap(self) -> SwapSpace | None:
        """Return the host memory for preempted sequences, if there is any."""

    @property
    def work(self) -> WorkCounter:
        """Return the counter of its steps' arithmetic and memory traffic."""

    def adapter(self, folder: str) -> LoadedAdapter:
        """Return an adapter, loaded if it is not. Raises InvalidRequestError if it cannot be used with the model."""

    def forward(self, plan: StepPlan, table: SeatTable, *, pending: PendingTokens | None = None) -> Tensor | None:
        """Start computing the plan; return its logits, None if nothing is sampled."""

    def sample(self, plan: StepPlan, logits: Tensor | None, *, rows: list[int] | None = None) -> Samples | None:
        """Start drawing the plan's tokens from these `rows` of the logits, or all; all earlier tokens are known."""


class ModelCompute:
    """Compute steps with a model and report their deltas. `table` is the scheduler's."""

    def __init__(self, runner: StepRunner, recorder: Recorder, table: SeatTable) -> None:
        self._runner = runner
        self._recorder = recorder
        self._table = table

    def start(self, plan: StepPlan, pending: PendingTokens | None) -> Tensor | None:
        return self._runner.forward(plan, self._table, pending=pending)

    def draw(self, plan: StepPlan, started: Tensor | None, rows: list[int] | None) -> PendingTokens | None:
        samples = self._runner.sample(plan, started, rows=rows)
        self._runner.work.observe(plan)
        return None if samples is None else PendingTokens(plan, samples)

    def record(self, plan: StepPlan, drawn: PendingTokens | None) -> Recorded:
        return Recorded() if drawn is None else self._recorder.append(plan, *drawn.samples.read())

    def finish(self, recorded: Recorded) -> list[TokenDelta]:
        return self._recorder.report(recorded)
