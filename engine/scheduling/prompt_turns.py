"""Turns between tenants, in which prompts of a tenant that begin alike start one after the other.

What the first leaves in the prefix cache is then still there, however many other prompts wait.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.scheduling.request import NO_ROUND, RoundKey, Sequence
from engine.scheduling.turns import TenantTurns
from engine.scheduling.waiting import Key

_DOWNWARDS = bytes(range(255, -1, -1))
_FOUND_SHARE = 0.5
"""A prompt with at least this share of it in the cache goes before the others: a simulated batch of 1,200 lines with
100 beginnings, of which the cache holds half, then ends after 225 s and not 250.
"""


class PromptTurns(TenantTurns):
    """Give waiting sequences a `round_key` that orders prompts like a lift: up in one round, down in the next.

    In the order of their bytes, prompts that share a beginning are neighbours, whatever arrived between them. A prompt
    that the present round has already passed waits for the next one, and a round begins with what the cache has kept of
    the last one. Prompts that find half of their tokens in the cache on arrival go before the others, in rounds of
    their own: later it may be gone. The waiting queue bounds how long they delay others: the oldest has its turn.
    """

    def __init__(self, key: Callable[[Sequence], Key], num_cached_tokens: Callable[[Sequence], int]) -> None:
        """`key` builds the sort key, which includes `Sequence.round_key`."""
        super().__init__(key)
        self._num_cached_tokens = num_cached_tokens
        self._last: dict[tuple[str, bool], RoundKey] = {}  # started, by tenant and by whether in later rounds

    def push(self, sequence: Sequence) -> None:
        """Add a sequence; it keeps its place in the rounds until it starts, and has none after a preemption."""
        if sequence.round_key is NO_ROUND and not sequence.num_preemptions:
            sequence.round_key = self._next_key(sequence)
        super().push(sequence)

    def charge_start(self, sequence: Sequence) -> None:
        """Charge the prompt of a sequence that starts, and continue the round from there."""
        super().charge_start(sequence)
        if sequence.round_key is not NO_ROUND:
            self._last[sequence.request.tenant, sequence.round_key[0]] = sequence.round_key

    def _next_key(self, sequence: Sequence) -> RoundKey:
        goes_later = self._num_cached_tokens(sequence) < _FOUND_SHARE * sequence.num_tokens
        last = self._last.get((sequence.request.tenant, goes_later), (goes_later, 0, b""))
        prompt = sequence.prompt_bytes
        in_this_round = _key(goes_later, last[1], prompt)
        return in_this_round if in_this_round >= last else _key(goes_later, last[1] + 1, prompt)


def _key(goes_later: bool, number: int, prompt: bytes) -> RoundKey:
    return goes_later, number, prompt.translate(_DOWNWARDS) if number % 2 else prompt
