"""Which tokens of a step are computed with which adapter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.device.transfer import upload
from engine.models.adapters.adapter import Adapter, AdapterRows
from engine.scheduling.plan import StepPlan


def adapter_rows(plan: StepPlan, query_start: npt.NDArray[np.int32], device: torch.device) -> Sequence[AdapterRows]:
    """Return the flat tokens of each adapter of a plan whose sequence i has the tokens from `query_start[i]` on."""
    indices: dict[Adapter, list[int]] = {}
    for index, sequence in enumerate(plan.sequences):
        adapter = sequence.request.loaded_adapter
        if adapter is not None:
            assert isinstance(adapter, Adapter), "the runner has loaded it"
            indices.setdefault(adapter, []).append(index)
    if len(indices) == 1 and len(next(iter(indices.values()))) == len(plan.sequences):
        return [AdapterRows(next(iter(indices)), None)]
    return [AdapterRows(each, upload(_rows(query_start, own), device)) for each, own in indices.items()]


def _rows(query_start: npt.NDArray[np.int32], indices: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.arange(query_start[i], query_start[i + 1], dtype=np.int64) for i in indices])
