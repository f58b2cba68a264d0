"""Penalties for earlier tokens: which they were and how often they occurred, per seat, kept on the device.

A seat costs memory (4 bytes per token of the vocabulary, 8 per token of its sequence) only once a sequence with a
penalty takes it; a step then uploads the new tokens, and changes only logits of tokens that occurred: 64 rows of 49,152
with 800 tokens each, bf16, took 127 ms over all logits and 11 ms this way (one thread of an EPYC Zen 4, busy machine,
2026-11-21).
"""

from __future__ import annotations

from collections.abc import Sequence as AnySequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.device.transfer import upload
from engine.scheduling.request import Sequence

_Int64 = npt.NDArray[np.int64]
_Float32 = npt.NDArray[np.float32]


@dataclass(slots=True)
class Pairs:
    """Pairs of a row in some table and a token id, as two flat arrays."""

    rows: _Int64
    token_ids: _Int64

    @classmethod
    def of(cls, rows: AnySequence[int], groups: AnySequence[AnySequence[int]]) -> Pairs:
        """Pair each row with every token of its group."""
        counts = [len(group) for group in groups]
        flat = np.fromiter(chain.from_iterable(groups), np.int64, sum(counts))
        return cls(np.repeat(np.array(rows, dtype=np.int64), counts), flat)

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return both arrays on the device, usable as an index."""
        return upload(self.rows, device), upload(self.token_ids, device)


@dataclass(slots=True, kw_only=True)
class PenaltyRows:
    """One step's penalised rows, and the updates that the table needs before they are computed."""

    table: TokenTable
    entries: _Int64
    """The table entry of each row."""
    lengths: _Int64
    """Number of tokens of each row's sequence."""
    presence: _Float32
    frequency: _Float32
    repetition: _Float32
    drafts: _Int64
    """`[rows, most drafts]`: the row's own drafts before it, then −1."""
    cleared_entries: list[int]
    """Entries with a new owner."""
    said: Pairs
    """Tokens to write to the table, with the entry of each."""
    said_positions: _Int64
    """Position of each of these in its sequence."""
    counted: Pairs
    """The ones among them that are output."""

    def apply(self, logits: Tensor) -> None:
        """Change `[rows, vocab]` fp32 logits in place: repetition first, then frequency and presence (as vLLM does).

        Repetition (CTRL, Keskar et al. 2019; as in transformers): the logit of a token of prompt or output is divided
        by the penalty if positive, multiplied if negative. Frequency and presence (OpenAI's API reference): minus
        frequency times its count in the output, minus presence if that is above 0. Only logits of tokens that occurred
        are changed; one that occurred twice is written twice, with the same value.
        """
        self.table.update(self, vocab_size=logits.shape[-1], device=logits.device)
        token_ids, counts = self.table.look_up(self)
        values = logits.gather(-1, token_ids)
        if (self.repetition != 1.0).any():
            repetition = _column(self.repetition, logits)
            values = torch.where(values > 0, values / repetition, values * repetition)
        values -= counts * _column(self.frequency, logits)
        values -= (counts > 0) * _column(self.presence, logits)
        logits.scatter_(-1, token_ids, values)


class TokenTable:
    """Per entry: a sequence's tokens in order, and how often each token of the vocabulary occurs in its output."""

    def __init__(self) -> None:
        self._counts = torch.zeros((0, 0), dtype=torch.int32)
        self._tokens = torch.zeros((0, 0), dtype=torch.int64)

    def update(self, rows: PenaltyRows, *, vocab_size: int, device: torch.device) -> None:
        """Clear the entries with a new owner, then add the tokens that the table does not hold yet."""
        num_entries = int(rows.entries.max()) + 1
        self._counts = _grown(self._counts, (num_entries, vocab_size), device)
        self._tokens = _grown(self._tokens, (num_entries, int(rows.lengths.max())), device)
        if rows.cleared_entries:
            self._counts.index_fill_(0, upload(np.array(rows.cleared_entries), device), 0)
        if rows.said.rows.size:
            entries, token_ids = rows.said.on(device)
            self._tokens[entries, upload(rows.said_positions, device)] = token_ids
        if rows.counted.rows.size:
            ones = torch.ones(len(rows.counted.rows), dtype=torch.int32, device=device)
            self._counts.index_put_(rows.counted.on(device), ones, accumulate=True)

    def look_up(self, rows: PenaltyRows) -> tuple[Tensor, Tensor]:
        """Return each row's tokens so far and their counts in its output, `[rows, tokens]` int64 and fp32.

        Drafts before the row are included; a shorter row is padded with its first token.
        """
        device = self._tokens.device
        entries = upload(rows.entries, device)
        lengths = upload(rows.lengths, device)
        longest = int(rows.lengths.max())
        token_ids = self._tokens[:, :longest].index_select(0, entries)
        is_own = torch.arange(longest, device=device) < lengths[:, None]
        token_ids = torch.where(is_own, token_ids, token_ids[:, :1])
        if not rows.drafts.size:
            return token_ids, self._counts[entries[:, None], token_ids].float()
        drafts = upload(rows.drafts, device)
        token_ids = torch.cat([token_ids, torch.where(drafts >= 0, drafts, token_ids[:, :1])], dim=-1)
        in_drafts = (token_ids[:, :, None] == drafts[:, None, :]).sum(dim=-1)
        return token_ids, (self._counts[entries[:, None], token_ids] + in_drafts).float()


class PenaltyBook:
    """The table entry of each seat, and how many of its sequence's tokens the table holds."""

    def __init__(self) -> None:
        self._table = TokenTable()
        self._entry_of: dict[int, int] = {}
        self._free_entries: list[int] = []
        self._num_entries = 0
        self._num_known: dict[int, int] = {}
        self._cleared: list[int] = []

    def assign(self, seat: int, *, has_penalty: bool) -> None:
        """Give a seat with a new owner an empty entry, or none; the former owner's entry becomes free."""
        if seat in self._entry_of:
            self._free_entries.append(self._entry_of.pop(seat))
            del self._num_known[seat]
        if has_penalty:
            if not self._free_entries:
                self._free_entries.append(self._num_entries)
                self._num_entries += 1
            self._entry_of[seat] = self._free_entries.pop()
            self._cleared.append(self._entry_of[seat])

    def rows(self, owners: list[Sequence], offsets: list[int]) -> PenaltyRows:
        """Return the penalty rows of these sampled rows, whose sequences all have a penalty."""
        unique = {sequence.row: sequence for sequence in owners}.values()
        grown = [sequence for sequence in unique if self._num_known.get(sequence.row) != sequence.num_tokens]
        starts = [self._num_known.get(sequence.row, 0) for sequence in grown]
        entries = [self._entry_of[sequence.row] for sequence in grown]
        for sequence in grown:
            self._num_known[sequence.row] = sequence.num_tokens
        pairs = list(zip(grown, starts, strict=True))
        positions = [np.arange(start, sequence.num_tokens) for sequence, start in pairs]
        params = [sequence.request.params for sequence in owners]
        cleared, self._cleared = self._cleared, []
        return PenaltyRows(
            table=self._table,
            entries=np.array([self._entry_of[sequence.row] for sequence in owners], dtype=np.int64),
            lengths=np.array([sequence.num_tokens for sequence in owners], dtype=np.int64),
            presence=np.array([own.presence_penalty for own in params], dtype=np.float32),
            frequency=np.array([own.frequency_penalty for own in params], dtype=np.float32),
            repetition=np.array([own.repetition_penalty for own in params], dtype=np.float32),
            drafts=_drafts(owners, offsets),
            cleared_entries=cleared,
            said=Pairs.of(entries, [sequence.token_ids[start:] for sequence, start in pairs]),
            said_positions=np.concatenate(positions) if positions else np.zeros(0, dtype=np.int64),
            counted=Pairs.of(
                entries, [sequence.token_ids[max(start, sequence.num_prompt_tokens) :] for sequence, start in pairs]
            ),
        )


def _drafts(owners: list[Sequence], offsets: list[int]) -> _Int64:
    drafts = np.full((len(owners), max(offsets)), -1, dtype=np.int64)
    for index, (sequence, offset) in enumerate(zip(owners, offsets, strict=True)):
        drafts[index, :offset] = sequence.draft_token_ids[:offset]
    return drafts


def _grown(table: Tensor, needed: tuple[int, int], device: torch.device) -> Tensor:
    """Return the table, or a copy with more room: at least double in each dimension that grows."""
    if all(have >= need for have, need in zip(table.shape, needed, strict=True)):
        return table
    shape = [have if have >= need else max(need, 2 * have) for have, need in zip(table.shape, needed, strict=True)]
    grown = torch.zeros(shape, dtype=table.dtype, device=device)
    if table.numel():
        grown[: table.shape[0], : table.shape[1]] = table
    return grown


def _column(values: _Float32, like: Tensor) -> Tensor:
    return upload(values, like.device)[:, None]
