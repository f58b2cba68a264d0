"""Tests of whether one more sequence may start beside the running ones."""

from __future__ import annotations

from collections.abc import Sequence as AnySequence

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from engine.config import Admission
from engine.params import SamplingParams
from engine.scheduling.admission import Gate, OutputForecast, most_blocks, peak_blocks
from engine.scheduling.blocks import BlockPool
from engine.scheduling.request import NewRequest, Request, Sequence


def sequence(prompt: int, output: int, *, max_tokens: int, is_open: bool = True) -> Sequence:
    """Return a sequence with this many tokens of prompt and output; if it is open it may end early."""
    new = NewRequest(request_id=1, prompt_token_ids=[5] * prompt, params=SamplingParams(max_tokens=max_tokens))
    request = Request.accept(
        new, max_tokens=max_tokens, seed=0, eos_token_ids=frozenset([2] if is_open else []), arrival=1
    )
    made = Sequence(request, 0, BlockPool(4, 4).chain(""))
    for _ in range(output):
        made.append(5)
    return made


class CountedForecast(OutputForecast):
    def __init__(self) -> None:
        super().__init__()
        self.num_asked = 0

    def remaining_tokens(self, sequences: AnySequence[Sequence]) -> npt.NDArray[np.int64]:
        self.num_asked += 1
        return super().remaining_tokens(sequences)


SHAPES = st.tuples(st.integers(1, 40), st.integers(0, 12), st.integers(1, 12), st.booleans())


@given(st.lists(SHAPES, min_size=1, max_size=12), st.floats(0, 1), st.integers(1, 16))
def test_no_forecast_is_above_what_the_longest_outputs_need(
    shapes: list[tuple[int, int, int, bool]], share: float, block_size: int
) -> None:
    group = [
        sequence(prompt, min(output, most), max_tokens=most, is_open=is_open)
        for prompt, output, most, is_open in shapes
    ]
    forecast = OutputForecast()
    forecast.share = share
    assert peak_blocks(group, forecast, block_size=block_size) <= most_blocks(group, block_size=block_size)


def test_nothing_is_forecast_where_all_fit_at_their_longest() -> None:
    pool, forecast = BlockPool(1000, 16), CountedForecast()
    gate = Gate(pool, forecast, admission=Admission.PEAK)
    running = [sequence(20, 0, max_tokens=1) for _ in range(64)]
    assert gate.shortage(sequence(20, 0, max_tokens=1), [], running) is None
    assert forecast.num_asked == 0


def test_where_the_longest_do_not_fit_the_forecast_decides() -> None:
    pool, forecast = BlockPool(20, 4), CountedForecast()
    gate = Gate(pool, forecast, admission=Admission.PEAK)
    running = [sequence(4, 0, max_tokens=40)]
    forecast.share = 0.1
    assert gate.shortage(sequence(4, 0, max_tokens=40), [], running) is None
    forecast.share = 1.0
    assert gate.shortage(sequence(4, 0, max_tokens=40), [], running) is not None
    assert forecast.num_asked == 2
