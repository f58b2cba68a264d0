"""Children of a request that wait for the first one, their leader, to compute their shared prompt.

Released followers join the sequences that wait for a seat.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.scheduling.request import Sequence


class Followers:
    """Followers by leader. `Sequence.leader` outlasts the wait: it tells whose blocks can be shared."""

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
        """Make sequences wait until their leader has computed its prompt or ended."""
        for sequence in followers:
            sequence.leader = leader
        self._of[leader] = list(followers)

    def remove(self, sequence: Sequence) -> None:
        """Remove a follower that ends before it has started; it must be one."""
        assert sequence.leader is not None, "the sequence has no leader"
        self._of[sequence.leader].remove(sequence)

    def release(self, leader: Sequence) -> list[Sequence]:
        """Release and return the followers of an ended leader."""
        return self._of.pop(leader, [])

    def release_ready(self) -> list[Sequence]:
        """Release and return the followers whose leader has computed its prompt."""
        ready = [leader for leader in self._of if leader.has_prompt_computed]
        return [sequence for leader in ready for sequence in self._of.pop(leader)]
