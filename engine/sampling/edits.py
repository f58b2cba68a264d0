"""Requests' edits of logits: allowed tokens, bad words, min_tokens, bias, penalties.

Rows do not influence each other, and a request without edits costs nothing. The order is that of vLLM 0.22
(docs.vllm.ai, `vllm.v1.sample.sampler`): allowed tokens, bad words, min_tokens, bias, penalties. Forbidding a token
sets its logit to minus infinity, which neither bias nor penalty changes.
"""

from __future__ import annotations

from collections.abc import Sequence as AnySequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.device.transfer import upload
from engine.params import SamplingParams
from engine.sampling.penalties import Pairs, PenaltyBook, PenaltyRows, TokenTable
from engine.scheduling.request import Sequence
from kernels.token_mask import apply_token_mask

_Int64 = npt.NDArray[np.int64]
_Words = npt.NDArray[np.int32]
_Float32 = npt.NDArray[np.float32]


def _no_rows() -> _Int64:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True, kw_only=True)
class AllowedTokens:
    """The rows, each once, that have a list of allowed tokens."""

    rows: _Int64
    words: list[_Words]
    """Per row a bit for every token, as kernels/token_mask.py reads them, up to the last allowed one."""

    def apply(self, logits: Tensor) -> None:
        """Set the logits of all other tokens to minus infinity, in place."""
        mask = np.zeros((len(self.rows), -(-logits.shape[-1] // 32)), dtype=np.int32)
        for row, words in zip(mask, self.words, strict=True):
            row[: len(words)] = words
        apply_token_mask(logits, upload(mask, logits.device), upload(self.rows, logits.device))


@dataclass(slots=True, kw_only=True)
class Bias:
    """Values to add to logits."""

    pairs: Pairs
    """Its rows are positions among the shifted rows."""
    values: _Float32


@dataclass(slots=True)
class Shifted:
    """The rows, ascending, whose logits were changed, and these logits, `[len(rows), vocab]` fp32."""

    rows: _Int64
    logits: Tensor

    def write_over(self, logits: Tensor, rows: _Int64) -> None:
        """Overwrite rows with the changed logits; `logits` `[len(rows), vocab]` fp32 belong to `rows`."""
        _, positions, sources = np.intersect1d(rows, self.rows, assume_unique=True, return_indices=True)
        device = logits.device
        logits[upload(positions, device)] = self.logits[upload(sources, device)]


@dataclass(slots=True, kw_only=True)
class Edits:
    """One step's edits of logits."""

    allowed: AllowedTokens | None = None
    forbidden: Pairs | None = None
    shifted: _Int64 = field(default_factory=_no_rows)
    """The rows, ascending, whose logits bias or penalties change."""
    bias: Bias | None = None
    penalised: _Int64 = field(default_factory=_no_rows)
    """Positions in `shifted`."""
    penalties: PenaltyRows | None = None
    """One row for each of `penalised`."""

    @property
    def forbids(self) -> bool:
        """Tell whether any token must not be sampled."""
        return self.allowed is not None or self.forbidden is not None

    def forbid(self, logits: Tensor) -> None:
        """Set the logits of tokens that must not be sampled to minus infinity, in place."""
        if self.allowed is not None:
            self.allowed.apply(logits)
        if self.forbidden is not None:
            # Not `logits[index] = number`: that copies the number from the host and waits for all of the device's work.
            logits.index_put_(self.forbidden.on(logits.device), logits.new_full((), -torch.inf))

    def shift(self, logits: Tensor) -> Shifted | None:
        """Return the changed logits of the shifted rows, None if there are none.

        A copy in fp32, since bf16 would round a small penalty away.
        """
        if not self.shifted.size:
            return None
        moved = logits.index_select(0, upload(self.shifted, logits.device)).float()
        if self.bias is not None:
            values = upload(self.bias.values, logits.device)
            moved.index_put_(self.bias.pairs.on(logits.device), values, accumulate=True)
        if self.penalties is not None:
            if len(self.penalised) == len(self.shifted):
                self.penalties.apply(moved)
            else:
                positions = upload(self.penalised, logits.device)
                penalised = moved.index_select(0, positions)
                self.penalties.apply(penalised)
                moved[positions] = penalised
        return Shifted(self.shifted, moved)


class _Wish:
    """The edits of one request, prepared for use in every step."""

    __slots__ = ("allowed", "banned", "bias_tokens", "bias_values", "has_penalty", "sequences_by_token")

    def __init__(self, params: SamplingParams) -> None:
        self.has_penalty = params.has_penalty
        self.allowed = None if params.allowed_token_ids is None else _words(params.allowed_token_ids)
        bias = params.logit_bias or {}
        self.bias_tokens, self.bias_values = tuple(bias), tuple(bias.values())
        self.banned = tuple(ids[0] for ids in params.bad_words_token_ids if len(ids) == 1)
        self.sequences_by_token: dict[int, list[tuple[int, ...]]] = {}
        for ids in params.bad_words_token_ids:
            if len(ids) > 1:  # looked up by the token before the one that would complete it
                self.sequences_by_token.setdefault(ids[-2], []).append(tuple(ids))

    @property
    def is_empty(self) -> bool:
        has_words = bool(self.banned or self.sequences_by_token)
        return not (self.has_penalty or self.allowed is not None or self.bias_tokens or has_words)

    def forbidden(self, sequence: Sequence, offset: int) -> list[int]:
        """Return the tokens that would complete a bad word after the output and `offset` of its drafts."""
        token_ids = list(self.banned)
        if self.sequences_by_token and sequence.num_output_tokens + offset > 0:
            before = sequence.draft_token_ids[offset - 1] if offset else sequence.last_token_id
            for ids in self.sequences_by_token.get(before, ()):
                if _ends_with(sequence, offset, ids[:-1]):
                    token_ids.append(ids[-1])
        return token_ids


class EditBook:
    """The edits of the seated sequences, and their tokens so far."""

    def __init__(self, num_seats: int) -> None:
        self._wishes: dict[int, _Wish] = {}
        self._has_wish = np.zeros(num_seats, dtype=np.bool_)
        self._penalties = PenaltyBook()

    def write(self, sequence: Sequence) -> None:
        """Set the edits of a newly seated sequence."""
        wish, seat = _Wish(sequence.request.params), sequence.row
        self._penalties.assign(seat, has_penalty=wish.has_penalty)
        self._wishes.pop(seat, None)
        self._has_wish[seat] = not wish.is_empty
        if not wish.is_empty:
            self._wishes[seat] = wish

    def edits(self, owners: list[Sequence], seats: _Int64, offsets: _Int64, early_rows: list[int]) -> Edits | None:
        """Return the edits of the sampled rows, None if there are none; `early_rows` must not end yet."""
        wished: list[tuple[int, _Wish]] = []
        if self._wishes:
            wished = [(row, self._wishes[int(seats[row])]) for row in np.flatnonzero(self._has_wish[seats]).tolist()]
        if not wished and not early_rows:
            return None
        shifted = [row for row, wish in wished if wish.bias_tokens or wish.has_penalty]
        index_of = {row: index for index, row in enumerate(shifted)}
        penalised = [row for row, wish in wished if wish.has_penalty]
        return Edits(
            allowed=_allowed([(row, wish.allowed) for row, wish in wished if wish.allowed is not None]),
            forbidden=_pairs(
                [(row, wish.forbidden(owners[row], int(offsets[row]))) for row, wish in wished]
                + [(row, sorted(owners[row].stop_token_ids)) for row in early_rows]
            ),
            shifted=np.array(shifted, dtype=np.int64),
            bias=_bias([(index_of[row], wish) for row, wish in wished if wish.bias_tokens]),
            penalised=np.array([index_of[row] for row in penalised], dtype=np.int64),
            penalties=self._penalties.rows([owners[row] for row in penalised], offsets[penalised].tolist())
            if penalised
            else None,
        )


def _ends_with(sequence: Sequence, offset: int, ids: tuple[int, ...]) -> bool:
    """Tell whether output and drafts end with these tokens; the prompt does not count, as in vLLM."""
    num_output = sequence.num_output_tokens
    if len(ids) > num_output + offset:
        return False
    drafts = sequence.draft_token_ids[max(0, offset - len(ids)) : offset]
    num_before = len(ids) - len(drafts)
    tail = sequence.token_ids[sequence.num_tokens - num_before :] if num_before else []
    return (*tail, *drafts) == ids


def _pairs(groups: AnySequence[tuple[int, AnySequence[int]]]) -> Pairs | None:
    pairs = Pairs.of([row for row, _ in groups], [token_ids for _, token_ids in groups])
    return pairs if pairs.rows.size else None


def _words(token_ids: AnySequence[int]) -> _Words:
    ids = np.fromiter(token_ids, np.int64, len(token_ids))
    bits = np.zeros((int(ids.max()) // 32 + 1) * 32, dtype=np.bool_)
    bits[ids] = True
    return np.packbits(bits, bitorder="little").view(np.int32)


def _allowed(wishes: list[tuple[int, _Words]]) -> AllowedTokens | None:
    if not wishes:
        return None
    return AllowedTokens(rows=np.array([row for row, _ in wishes]), words=[words for _, words in wishes])


def _bias(wishes: list[tuple[int, _Wish]]) -> Bias | None:
    if not wishes:
        return None
    return Bias(
        pairs=Pairs.of([index for index, _ in wishes], [wish.bias_tokens for _, wish in wishes]),
        values=np.array([value for _, wish in wishes for value in wish.bias_values], dtype=np.float32),
    )


def edits_of_every_kind(num_rows: int) -> Edits:
    """Return edits of each kind for every row, so that a warm-up step runs them all and measures their memory."""
    rows = range(num_rows)
    numbers = np.ones(num_rows, dtype=np.float32)
    penalties = PenaltyRows(
        table=TokenTable(),
        entries=np.arange(num_rows),
        presence=numbers,
        frequency=numbers,
        repetition=numbers * np.float32(1.5),
        lengths=np.ones(num_rows, dtype=np.int64),
        drafts=np.zeros((num_rows, 1), dtype=np.int64),
        cleared_entries=list(rows),
        said=Pairs.of(rows, [[0]] * num_rows),
        said_positions=np.zeros(num_rows, dtype=np.int64),
        counted=Pairs.of(rows, [[0]] * num_rows),
    )
    return Edits(
        allowed=AllowedTokens(rows=np.arange(num_rows), words=[_words([0, 1])] * num_rows),
        forbidden=Pairs.of(rows, [[1]] * num_rows),
        shifted=np.arange(num_rows),
        bias=Bias(pairs=Pairs.of(rows, [[0]] * num_rows), values=numbers),
        penalised=np.arange(num_rows),
        penalties=penalties,
    )
