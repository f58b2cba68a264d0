"""One step's token masks: a row for each sampled row of logits whose sequence has a grammar.

They are written on the host while the device computes the step, and applied to the logits by kernels/token_mask.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.device.transfer import upload
from engine.grammars.grammar import MaskFiller
from engine.grammars.matcher import GrammarMatcher
from engine.grammars.thinking import RowRules, ThinkingMatcher, write_rule
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence
from engine.thoughts import Next
from kernels.token_mask import apply_token_mask

_Words = npt.NDArray[np.int32]
_Wanted = tuple[GrammarMatcher, int, list[int]]
"""A matcher of a sequence, the row for its mask, and the drafts, each followed by a further row."""


@dataclass(frozen=True, slots=True)
class RowMasks:
    """The tokens allowed in some sampled rows: `words` `[masked, ceil(vocab / 32)]` int32, `rows` `[masked]`."""

    words: Tensor
    rows: Tensor

    @classmethod
    def of_everything(cls, num_rows: int, *, vocab_size: int, device: torch.device) -> RowMasks:
        """Return masks that allow every token, for a warm-up."""
        words = torch.full((num_rows, -(-vocab_size // 32)), -1, dtype=torch.int32, device=device)
        return cls(words, torch.arange(num_rows, device=device))

    def apply(self, logits: Tensor) -> None:
        """Set the logits of all other tokens to minus infinity, in place."""
        apply_token_mask(logits, self.words, self.rows)


class MaskWriter:
    """Write masks into a buffer that is reused in every step.

    That is safe because the tokens sampled with it are read before it is written again: by then the device has copied
    it.
    """

    def __init__(
        self, *, vocab_size: int, device: torch.device, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._num_words = -(-vocab_size // 32)
        self._device = device
        self._clock = clock
        self._filler: MaskFiller | None = None
        self._buffer = self._allocate(0)

    def write(self, plan: StepPlan) -> RowMasks | None:
        """Return the masks of the plan's sampled rows, None if no sequence has a grammar; record how long they took."""
        if not plan.asks_more.any():
            return None
        requests: dict[Sequence, list[_Wanted]] = {}
        early: list[tuple[int, frozenset[int]]] = []
        rules: list[tuple[int, Next]] = []
        rows: list[int] = []
        first_rows = plan.num_sampled.cumsum() - plan.num_sampled
        for index in np.flatnonzero(plan.asks_more * plan.num_sampled).tolist():
            sequence, num_sampled, row = plan.sequences[index], int(plan.num_sampled[index]), int(first_rows[index])
            if (wanted := _wanted(sequence, num_sampled)) is not None:
                early_rows = _early_rows(sequence, len(rows), num_sampled)
                if early_rows or not wanted.are_trivial:
                    requests[sequence] = [
                        (matcher, len(rows) + first, drafts) for matcher, first, drafts in wanted.fills
                    ]
                    rules += enumerate(wanted.rules, start=len(rows))
                    early += early_rows
                    rows += range(row, row + num_sampled)
        if not rows:
            return None
        words = self._mask_rows(len(rows))
        if rules or any(drafts for fills in requests.values() for _, _, drafts in fills):
            words.fill(-1)  # rows after a draft that the grammar does not allow are not written, and not used
        plan.grammar_seconds = self._fill(requests, words)
        for mask_row, rule in rules:
            write_rule(words[mask_row], rule)
        for mask_row, stop_token_ids in early:
            _hold_off_stops(words[mask_row], stop_token_ids)
        return self._upload(rows)

    def _fill(self, requests: dict[Sequence, list[_Wanted]], words: _Words) -> dict[Sequence, float]:
        """Write the masks; return how long each sequence's grammar kept the device waiting since its last mask.

        Masks of one tenant may be written on several threads, and share the time; those of other tenants wait for them.
        """
        seconds: dict[Sequence, float] = {}
        for group in _by_tenant(sequence for sequence, fills in requests.items() if fills):
            if self._filler is None:
                self._filler = MaskFiller()
            start = self._clock()
            self._filler.fill([wanted for sequence in group for wanted in requests[sequence]], words)
            mean = (self._clock() - start) / len(group)
            for sequence in group:
                seconds[sequence] = mean
                for matcher, _, _ in requests[sequence]:
                    seconds[sequence] += matcher.seconds
                    matcher.seconds = 0.0
        return {} if self._device_is_busy() else seconds

    def _device_is_busy(self) -> bool:
        """Tell whether the device still computes the step: nothing has then waited for masks."""
        return self._device.type == "cuda" and not torch.cuda.current_stream(self._device).query()

    def _mask_rows(self, count: int) -> _Words:
        if count > self._buffer.shape[0]:
            self._buffer = self._allocate(count + count // 2)
        words: _Words = self._buffer[:count].numpy()
        return words

    def _allocate(self, num_rows: int) -> Tensor:
        is_pinned = self._device.type == "cuda"
        return torch.empty((num_rows, self._num_words), dtype=torch.int32, pin_memory=is_pinned)

    def _upload(self, rows: list[int]) -> RowMasks:
        words = self._buffer[: len(rows)]
        return RowMasks(words.to(self._device, non_blocking=True), upload(np.array(rows), self._device))


def _wanted(sequence: Sequence, num_sampled: int) -> RowRules | None:
    """Return what may follow in a sequence's sampled rows; None without a matcher."""
    matcher = sequence.matcher
    if matcher is None:
        return None
    drafts = sequence.draft_token_ids[: num_sampled - 1]
    if isinstance(matcher, ThinkingMatcher):
        return matcher.rules_of(drafts)
    assert isinstance(matcher, GrammarMatcher), "sequences have no other matchers"
    return RowRules([], [(matcher, 0, drafts[: matcher.num_allowed(drafts)] if drafts else drafts)])


def _by_tenant(sequences: Iterable[Sequence]) -> Iterable[list[Sequence]]:
    groups: dict[tuple[int, str], list[Sequence]] = {}
    for sequence in sequences:
        groups.setdefault((sequence.request.priority, sequence.request.tenant), []).append(sequence)
    return groups.values()


def _early_rows(sequence: Sequence, mask_row: int, num_sampled: int) -> list[tuple[int, frozenset[int]]]:
    """Return the rows of masks, with the stop tokens, whose token comes before min_tokens."""
    num_early = sequence.request.params.min_tokens - sequence.num_output_tokens
    return [(mask_row + offset, sequence.stop_token_ids) for offset in range(min(num_sampled, num_early))]


def _hold_off_stops(words: _Words, stop_token_ids: frozenset[int]) -> None:
    """Forbid the stop tokens, unless nothing else is allowed: a complete text cannot be made longer."""
    remaining = words.view(np.uint32).copy()
    for token_id in stop_token_ids:
        remaining[token_id // 32] &= np.uint32(~(1 << token_id % 32) & 0xFFFFFFFF)
    if remaining.any():
        words[:] = remaining.view(np.int32)
