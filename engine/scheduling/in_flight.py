"""The blocks that running prompts are about to fill, so that no other sequence computes the same blocks.

The scheduler decides which sequences wait.
"""

from __future__ import annotations

from engine.scheduling.request import Sequence


class InFlightPrefixes:
    """By digest, which seated sequence is computing a block; entries go when it loses its seat."""

    def __init__(self) -> None:
        self._owner_of: dict[bytes, Sequence] = {}
        self._digests_of: dict[Sequence, list[bytes]] = {}

    def begin(self, sequence: Sequence, first: int, end: int) -> None:
        """Record that a newly seated sequence will compute its blocks from `first` on and before `end`."""
        own = []
        for index in range(first, end):
            digest, _ = sequence.chain.at(index, sequence.token_ids)
            if self._owner_of.setdefault(digest, sequence) is sequence:
                own.append(digest)
        if own:
            self._digests_of[sequence] = own

    def owner_of(self, sequence: Sequence, block_index: int) -> Sequence | None:
        """Return the sequence that is computing this block of a waiting sequence, None if there is none."""
        if not self._owner_of:
            return None
        return self._owner_of.get(sequence.chain.at(block_index, sequence.token_ids)[0])

    def land(self, digest: bytes) -> None:
        """Record that a block is computed."""
        self._owner_of.pop(digest, None)

    def leave(self, sequence: Sequence) -> None:
        """Forget the blocks of a sequence that loses its seat."""
        for digest in self._digests_of.pop(sequence, ()):
            if self._owner_of.get(digest) is sequence:
                del self._owner_of[digest]
