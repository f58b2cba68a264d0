"""Matcher of an output that thinks: its grammar, if it has one, applies behind the thoughts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.grammars.matcher import GrammarMatcher
from engine.params import SamplingParams
from engine.scheduling.request import Matcher, Request
from engine.thoughts import EVERYTHING, Next, ThoughtGate


@dataclass(frozen=True, slots=True)
class RowRules:
    """What may follow before each draft, up to the first that may not, and after the last one."""

    rules: list[Next]
    """One a row; the rows of the last fill may be more."""
    fills: list[tuple[GrammarMatcher, int, list[int]]]
    """What grammars write: a matcher, its first row, and the drafts that it allows from there on."""

    @property
    def are_trivial(self) -> bool:
        """Tell whether every token may follow in each row."""
        return not self.fills and all(rule == EVERYTHING for rule in self.rules)


class ThinkingMatcher:
    """Position of one sequence's output, in its thoughts or in its grammar; a `Matcher`. Not thread-safe."""

    __slots__ = ("_gate", "grammar")

    def __init__(self, gate: ThoughtGate, grammar: GrammarMatcher | None) -> None:
        """Without `grammar` only a budget is enforced."""
        self._gate = gate
        self.grammar = grammar

    @classmethod
    def of(cls, request: Request, grammar: GrammarMatcher | None) -> ThinkingMatcher:
        """Return the matcher of a request that thinks, at the start."""
        assert request.params.thoughts is not None, "the request does not think"
        stop_token_ids = request.stop_token_ids
        gate = ThoughtGate(request.params.thoughts, is_structured=grammar is not None, stop_token_ids=stop_token_ids)
        return cls(gate, grammar)

    @property
    def error(self) -> str | None:
        """Return why matching cannot continue."""
        return None if self.grammar is None else self.grammar.error

    @property
    def is_spent(self) -> bool:
        """Tell whether copies of its grammar are unusable because one of them failed."""
        return self.grammar is not None and self.grammar.is_spent

    def copy(self) -> ThinkingMatcher:
        """Return an independent matcher at the same position."""
        return ThinkingMatcher(self._gate.copy(), None if self.grammar is None else self.grammar.copy())

    def accept(self, token_id: int) -> bool:
        """Advance by a token; return False if it may not follow here."""
        following = self._gate.next
        if following.allows(token_id):
            self._gate.read(token_id)
            return True
        if not following.is_grammars or self.grammar is None or not self.grammar.accept(token_id):
            return False
        self._gate.answer()
        return True

    def replay(self, token_ids: Sequence[int]) -> bool:
        """Advance by the output of an earlier run; return False if it may not be."""
        return all(map(self.accept, token_ids))

    def forced_tokens(self) -> list[int]:
        """Return the tokens that must follow: the end of thoughts, or those of the grammar; often empty."""
        following = self._gate.next
        if following.is_grammars and self.grammar is not None and not following.also:
            return self.grammar.forced_tokens()
        return list(self._gate.forced)

    def num_allowed(self, token_ids: list[int]) -> int:
        """Return how many of these tokens could follow, one after the other."""
        rules = self.rules_of(token_ids)
        if not rules.fills:
            return len(rules.rules) - 1
        _, row, drafts = rules.fills[-1]
        return max(len(rules.rules) - 1, row + len(drafts))

    def rules_of(self, drafts: list[int]) -> RowRules:
        """Return what may follow before each of these drafts, up to the first that may not, and after the last one."""
        gate = self._gate.copy()
        rules: list[Next] = []
        fills: list[tuple[GrammarMatcher, int, list[int]]] = []
        for row in range(len(drafts) + 1):
            following = gate.next
            rules.append(following)
            may_go_on = row < len(drafts) and following.allows(drafts[row])
            if following.is_grammars:
                assert self.grammar is not None, "no row is left to a grammar that is not there"
                rest = [] if may_go_on else drafts[row:]
                # A copy where the same grammar may write a later row at the same time.
                grammar = self.grammar.copy() if may_go_on else self.grammar
                fills.append((grammar, row, rest[: grammar.num_allowed(rest)] if rest else rest))
            if not may_go_on:
                break
            gate.read(drafts[row])
        return RowRules(rules, fills)


def is_followed(params: SamplingParams) -> bool:
    """Tell whether a request's tokens must be followed by a matcher."""
    thoughts = params.thoughts
    return params.structured is not None or (thoughts is not None and thoughts.budget is not None)


def behind_thoughts(matcher: Matcher | None, request: Request) -> Matcher | None:
    """Return the matcher of a compiled grammar, behind the request's thoughts if it has any."""
    if matcher is None or request.params.thoughts is None:
        return matcher
    assert isinstance(matcher, GrammarMatcher), "a grammar is compiled to no other matcher"
    return ThinkingMatcher.of(request, matcher)


def write_rule(words: npt.NDArray[np.int32], rule: Next) -> None:
    """Write one row's mask, except for what is left to the grammar, which is there already."""
    bits = words.view(np.uint32)
    if rule.is_grammars:
        _set(bits, rule.also)
    elif rule.only is not None:
        bits.fill(0)
        _set(bits, rule.only)
    else:
        bits.fill(0xFFFFFFFF)
        for token_id in rule.without:
            bits[token_id // 32] &= np.uint32(~(1 << token_id % 32) & 0xFFFFFFFF)


def _set(bits: npt.NDArray[np.uint32], token_ids: frozenset[int]) -> None:
    for token_id in token_ids:
        bits[token_id // 32] |= np.uint32(1 << token_id % 32)
