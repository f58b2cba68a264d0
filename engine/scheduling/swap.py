"""Host memory for the KV of preempted sequences: whether to use it, for which blocks, what to copy. Ids, no torch.

A preempted sequence's KV is either recomputed later or copied to host blocks and back. Which is cheaper depends on the
device and the model, so both are measured when the engine starts.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.scheduling.blocks import num_blocks_for
from engine.scheduling.plan import BlockCopy, StepPlan
from engine.scheduling.request import Parked, Sequence
from engine.scheduling.seat_map import SeatMap


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapRule:
    """Measured costs: seconds to copy a block out and back in, and to compute a prompt token."""

    seconds_per_block: float
    seconds_per_token: float

    def prefers_swap(self, *, num_blocks: int, num_tokens: int) -> bool:
        """Tell whether copying is cheaper than recomputing if the prefix cache had nothing of it."""
        return num_blocks * self.seconds_per_block < num_tokens * self.seconds_per_token


class SwapSpace:
    """Own the host blocks, and collect the copies for the next step."""

    def __init__(self, num_blocks: int, rule: SwapRule) -> None:
        self.num_blocks = num_blocks
        self._rule = rule
        self._free = list(range(num_blocks - 1, -1, -1))
        self._copies_out: list[BlockCopy] = []
        self._copies_in: list[BlockCopy] = []

    @property
    def num_free(self) -> int:
        """Return how many host blocks are free."""
        return len(self._free)

    def put_aside(self, sequence: Sequence, *, block_size: int) -> bool:
        """Schedule the copy of a sequence's KV to the host before its blocks are overwritten, if that pays and fits."""
        num_tokens = sequence.num_computed_tokens
        num_blocks = num_blocks_for(num_tokens, block_size)
        if not 0 < num_blocks <= len(self._free):
            return False
        if not self._rule.prefers_swap(num_blocks=num_blocks, num_tokens=num_tokens):
            return False
        host_blocks = [self._free.pop() for _ in range(num_blocks)]
        sequence.parked = Parked(host_blocks, num_tokens)
        self._copies_out.append(BlockCopy(device_blocks=sequence.block_ids[:num_blocks], host_blocks=host_blocks))
        return True

    def bring_back(self, sequence: Sequence, seats: SeatMap) -> int:
        """Schedule the copy of a newly seated sequence's host blocks, after the blocks that the prefix cache still has.

        Return how many of its tokens are then computed; 0 if nothing is copied.
        """
        parked, sequence.parked = sequence.parked, None
        if parked is None:
            return 0
        host_blocks, num_shared = parked.host_block_ids, len(sequence.block_ids)
        self._free += host_blocks[:num_shared]
        if len(host_blocks) <= num_shared:
            return 0
        seats.grow(sequence, len(host_blocks) - num_shared)
        self._copies_in.append(
            BlockCopy(device_blocks=sequence.block_ids[num_shared:], host_blocks=host_blocks[num_shared:])
        )
        return parked.num_tokens

    def drop(self, sequence: Sequence) -> None:
        """Free the host blocks of an ended sequence."""
        if sequence.parked is not None:
            self._free += sequence.parked.host_block_ids
            sequence.parked = None

    def hand_over(self, plan: StepPlan) -> None:
        """Add the copies collected since the last plan to this one."""
        plan.copies_out, self._copies_out = self._copies_out, []
        plan.copies_in, self._copies_in = self._copies_in, []

    def advance(self, plan: StepPlan) -> None:
        """Free the host blocks whose content the plan has copied in."""
        for copy in plan.copies_in:
            self._free += copy.host_blocks
