"""Each tenant's share of the steps' time for grammars, and which sequences sit out a step when it is used up.

Tokens are computed in parallel, but masks are written one after the other, and every row of a step waits for all of
them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as AnySequence
from dataclasses import dataclass

from engine.scheduling.request import Sequence

MAX_DEBT_SECONDS = 1.0
"""Debt beyond this is forgiven: one odd measurement, as of a process that was stopped, must not last."""

_Account = tuple[int, str]
"""A priority class, and a tenant in it."""


@dataclass(slots=True)
class _Balance:
    seconds: float
    """Time left for the next step; debt if below 0."""
    seconds_a_row: float = 0.0
    """Of the last step in which one of its sequences took part."""


class GrammarShares:
    """Give a tenant's grammars as much of the steps' time, by its weight, as each competing tenant has on average.

    Competing tenants have a seat in the same class or a more urgent one. Without any there is no bound. At most one
    step's share is saved.
    """

    def __init__(self, class_of: Callable[[Sequence], int | None]) -> None:
        """`class_of` returns the number of the class in which a sequence's tenant takes turns, None for no turns."""
        self._class_of = class_of
        self._balances: dict[_Account, _Balance] = {}

    def resting(self, running: AnySequence[Sequence]) -> set[Sequence]:
        """Return the sequences that sit out the next step: those with a grammar, from the first without time left.

        Never all that could run. A prompt continues: it has one row, and only with its last piece.
        """
        if all(balance.seconds == math.inf for balance in self._balances.values()):
            return set()
        left = {account: balance.seconds for account, balance in self._balances.items()}
        resting = set()
        for sequence in running:
            account = self._account_of(sequence)
            if account not in left or sequence.matcher is None or not sequence.has_prompt_computed:
                continue
            if left[account] > 0.0:
                left[account] -= self._balances[account].seconds_a_row
            else:
                resting.add(sequence)
        return resting if len(resting) < len(running) else set()

    def observe(self, seconds: dict[Sequence, float], running: Iterable[Sequence], *, step_seconds: float) -> None:
        """Charge a step: how long the grammar of each of its sequences worked, and how long the whole step took.

        A step whose time is unknown, 0, is charged to no one.
        """
        if step_seconds <= 0.0 or not (seconds or self._balances):
            return
        spent: defaultdict[_Account, list[float]] = defaultdict(list)
        for sequence, worked in seconds.items():
            if (account := self._account_of(sequence)) is not None:
                spent[account].append(worked)
        weights = self._weights((*running, *seconds))
        for account in self._balances.keys() - weights.keys():
            del self._balances[account]
        for account in self._balances.keys() | spent.keys():
            self._settle(account, spent.get(account, []), weights, step_seconds)

    def _settle(
        self, account: _Account, spent: list[float], weights: dict[_Account, float], step_seconds: float
    ) -> None:
        balance = self._balances.setdefault(account, _Balance(0.0))
        if spent:
            balance.seconds_a_row = sum(spent) / len(spent)
        others = {other[1]: weight for other, weight in weights.items() if other[0] <= account[0]}
        own_weight = others.pop(account[1])
        if not others:
            balance.seconds = math.inf
            return
        share = max(0.0, step_seconds - sum(spent)) * own_weight / sum(others.values())
        balance.seconds = max(-MAX_DEBT_SECONDS, min(balance.seconds + share - sum(spent), share))

    def _weights(self, sequences: Iterable[Sequence]) -> dict[_Account, float]:
        """Return the weight of each tenant that has a sequence among these."""
        accounts = ((self._account_of(sequence), sequence.request.weight) for sequence in sequences)
        return {account: weight for account, weight in accounts if account is not None}

    def _account_of(self, sequence: Sequence) -> _Account | None:
        number = self._class_of(sequence)
        return None if number is None else (number, sequence.request.tenant)
