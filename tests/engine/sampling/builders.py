"""Sequences for tests of what the sampler is told."""

from __future__ import annotations

from typing import Any

from engine.params import SamplingParams
from engine.scheduling.blocks import NO_PARENT, BlockPool
from engine.scheduling.request import Request, Seat, Sequence


def seated(prompt: list[int], output: list[int], *, row: int = 0, **params: Any) -> Sequence:
    """Return a running sequence that has generated `output`."""
    request = Request(
        request_id=row,
        prompt_token_ids=prompt,
        params=SamplingParams(max_tokens=100, **params),
        max_tokens=100,
        seed=0,
        eos_token_ids=frozenset(),
        arrival=row,
    )
    sequence = Sequence(request, 0, BlockPool(4, 4).chain(""))
    sequence.seat = Seat(row, [], 0, NO_PARENT)
    for token_id in output:
        sequence.append(token_id)
    return sequence
