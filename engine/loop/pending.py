"""Tokens that the device is still drawing while the next step, which uses them, is planned and started.

The host only knows that there is one per sampling sequence; their values pass from step to step on the device.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.device.transfer import upload
from engine.loop.batch import StepArrays
from engine.sampling.sampler import Samples
from engine.scheduling.plan import StepPlan
from engine.scheduling.seat_numbers import Int64


class PendingTokens:
    """A step's pruned plan and the samples it draws: one for each sampling sequence, in order."""

    def __init__(self, plan: StepPlan, samples: Samples) -> None:
        self.samples = samples
        self._plan = plan

    @torch.inference_mode()
    def write(self, token_ids: Tensor, arrays: StepArrays) -> None:
        """Write the drawn tokens where the next step expects them in `token_ids` `[tokens]` int64, without waiting."""
        if not arrays.pending_rows.size:
            return
        device = token_ids.device
        rows, indices = upload(self._sources(arrays), device), upload(arrays.pending_rows, device)
        # NO_TOKEN, a row without an allowed token, ends when the host reads it; until then any valid id does.
        token_ids.index_copy_(0, indices, self.samples.tokens.index_select(0, rows).clamp_(min=0))

    def _sources(self, arrays: StepArrays) -> Int64:
        """Return the row of the samples for each pending sequence; in most steps they are the same sequences again."""
        sampled, pending = self._plan.serials[self._plan.num_sampled > 0], arrays.pending_serials
        if len(sampled) == len(pending) and (sampled == pending).all():
            return np.arange(len(sampled))
        order = sampled.argsort()
        sources: Int64 = order[sampled.searchsorted(pending, sorter=order)]
        return sources
