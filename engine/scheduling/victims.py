"""Choose the fewest running sequences that must leave for an urgent one to start, or none. Preempts no sequence."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import islice, takewhile

from engine.scheduling.admission import Gate
from engine.scheduling.blocks import BlockPool
from engine.scheduling.request import Sequence
from engine.scheduling.seat_map import SeatMap


class VictimChoice:
    """Compute seats, blocks and a step's tokens as they would be without some of the running sequences."""

    def __init__(self, pool: BlockPool, seats: SeatMap, gate: Gate, *, max_num_batched_tokens: int) -> None:
        self._pool = pool
        self._seats = seats
        self._gate = gate
        self._max_num_batched_tokens = max_num_batched_tokens

    def victims_for(
        self, urgent: Sequence, shared: list[int], running: list[Sequence], may_go: Callable[[Sequence], bool]
    ) -> list[Sequence]:
        """Return the fewest of the worst that must go; none if it can start beside them, or could not without them.

        `running` has the best first, `shared` are the blocks that the urgent one finds. A sequence that is better than
        one that may not go stays.
        """

        def has_room(num_victims: int) -> bool:
            return self._has_room(urgent, shared, running, num_victims=num_victims)

        candidates = takewhile(may_go, reversed(running))
        victims: list[Sequence] = []
        while not has_room(len(victims)):
            more = list(islice(candidates, max(1, len(victims))))
            if not more:
                return []
            victims += more
        victims = victims[: bisect_left(range(len(victims)), True, key=has_room)]
        num_tokens = sum(sequence.num_due_tokens for sequence in running[: len(running) - len(victims)])
        return victims if num_tokens < self._max_num_batched_tokens else []

    def _has_room(self, urgent: Sequence, shared: list[int], running: list[Sequence], *, num_victims: int) -> bool:
        """Tell whether it would get a seat and blocks in this step if that many of the worst were gone.

        The others' needs in this step come first. More victims never make less room.
        """
        if not self._seats.has_free_row and not num_victims:
            return False
        num_staying = len(running) - num_victims
        staying = running[:num_staying]
        freed = (block for victim in running[num_staying:] for block in victim.block_ids)
        num_gained = self._pool.num_freed_by(freed, kept=shared)
        for sequence in staying:
            num_gained -= self._seats.num_missing_blocks(sequence, sequence.num_due_tokens)
        return self._gate.shortage(urgent, shared, staying, num_gained_blocks=num_gained) is None
