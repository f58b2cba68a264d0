"""Children of a request that wait for the first one, their leader, to compute the prompt that all of them share.

Knows no queue and no seats: who is released here joins those that wait for a seat.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.scheduling.request import Sequence


class Followers:
    """Keep who waits for which leader. `Sequence.leader` outlasts the wait: it tells whose blocks can be shared."""

    def __init__(self) -> None:
        self._of: dict[Sequence, list[Sequence]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def __iter__(self) -> Iterator[Sequence]:
        for followers in self._of.values():
            yield from followers

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.leader is not None and sequence in self._of.get(sequence.leader, ())

    def hold(self, followers: list[Sequence], *, leader: Sequence) -> None:
        """Let sequences wait until their leader has computed its prompt, or ends."""
        for sequence in followers:
            sequence.leader = leader
        self._of[leader] = list(followers)

    def remove(self, sequence: Sequence) -> None:
        """Take out a follower that ends before it has begun; it must be one."""
        assert sequence.leader is not None, "the sequence follows nobody"
        self._of[sequence.leader].remove(sequence)

    def release(self, leader: Sequence) -> list[Sequence]:
        """Let go of those that wait for a leader that has ended, and return them."""
        return self._of.pop(leader, [])

    def release_ready(self) -> list[Sequence]:
        """Let go of those whose leader has computed its prompt, and return them."""
        ready = [leader for leader in self._of if leader.has_prompt_computed]
        return [sequence for leader in ready for sequence in self._of.pop(leader)]
