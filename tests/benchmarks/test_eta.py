"""The measurement of forecasts: every batch ends in the simulator, and forecasts come close as it does."""

from __future__ import annotations

import numpy as np

from benchmarks import eta
from benchmarks.traces import TraceRow


def test_forecasts_are_close_to_the_end_that_the_simulator_finds() -> None:
    rows = [
        TraceRow(arrival_seconds=0.0, num_prompt_tokens=100, num_output_tokens=length, tenant="")
        for length in range(300, 340)
    ]
    batches = eta.make_batches(rows, num_batches=6, seconds=20.0)
    found = eta.forecast_all(batches)
    assert all(batch.num_finished == len(batch.lines) for batch in batches)
    assert all(batch.end_seconds > batch.arrival_seconds for batch in batches)
    pairs = np.array(list(found.errors(0.5)))
    assert len(pairs) > 0
    assert np.median(np.abs(pairs[:, 0])) < np.median([batch.end_seconds - batch.arrival_seconds for batch in batches])
    assert eta.table(found).count("\n") == 2 + 4
