"""Counts of the arithmetic and memory traffic of steps, from shapes alone.

Divided by what a device can do in the same time, they give its utilisation of arithmetic (MFU) and bandwidth (MBU).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.scheduling.plan import StepPlan
from engine.scheduling.step_load import load_of
from engine.stats import WorkCounters

if TYPE_CHECKING:
    from engine.models.step_model import ModelSizes


class WorkCounter:
    """Sum over all steps: floating-point operations, bytes read (weights and cached keys and values), bytes written.

    Activations are left out: they are small beside the weights, and mostly stay in caches. For a mixture of experts all
    weights count, though a step may need fewer. The sums are floats: a model of 8 billion weights passes the largest
    integer that a message can hold, 2^64 - 1, after 1.1 · 10^9 tokens.
    """

    def __init__(self, sizes: ModelSizes, *, kv_bytes_per_token: int) -> None:
        """Take the model's sizes, and the bytes of one token's keys and values."""
        self._sizes = sizes
        self._kv_bytes_per_token = kv_bytes_per_token
        self.counters = WorkCounters()

    def observe(self, plan: StepPlan) -> None:
        """Add a computed step."""
        sizes, load, counters = self._sizes, load_of(plan), self.counters
        counters.num_operations += 2 * sizes.num_layer_weights * load.num_tokens
        counters.num_operations += 2 * sizes.num_head_weights * load.num_logit_rows
        counters.num_operations += 4 * sizes.attention_width * load.num_attended
        weight_bytes = sizes.num_layer_bytes + (sizes.num_head_bytes if load.num_logit_rows else 0)
        counters.num_read_bytes += weight_bytes + self._kv_bytes_per_token * load.num_context_tokens
        counters.num_written_bytes += self._kv_bytes_per_token * load.num_tokens
