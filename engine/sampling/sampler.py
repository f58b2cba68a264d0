"""Choose one token per row of logits, which depends only on the row's own logits, parameters, seed and position.

Greedy rows cost one argmax. The others are drawn by kernels/draw_tokens.py on a GPU, without a sort and without making
the host wait. On a CPU, kernels/draw_from_logits.py draws rows without filters from the whole distribution; those with
top-k or top-p search their most likely tokens only, and all of them only if top-p reaches further. The two differ if
equally likely tokens are at the edge of the kept ones: a CPU may keep some of them, a GPU keeps all.
A row with NaN or infinite logits is detected by its largest one, before any token is forbidden: after that, minus
infinity everywhere is what the request asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.device.transfer import Download, upload
from engine.outputs import BROKEN_ROW, NO_TOKEN, TokenLogprobs
from engine.sampling.edits import Shifted
from engine.sampling.logprobs import LogprobRows
from engine.sampling.randomness import uniforms
from engine.sampling.table import SamplingRows
from kernels.best_token import NOT_FINITE, best_tokens
from kernels.draw_from_logits import draw_from_logits
from kernels.draw_tokens import draw_tokens

_FIRST_CANDIDATES = 1024

assert NOT_FINITE == BROKEN_ROW < NO_TOKEN, "the kernels' value for a row without a largest number is reused"


class Samples:
    """Tokens that the device draws, `tokens` `[rows]` int64, and requested log-probabilities, being copied here."""

    def __init__(self, tokens: Tensor, logprobs: LogprobRows | None, rows_with_logprobs: list[int]) -> None:
        self.tokens = tokens
        self._download = Download(tokens)
        self._logprobs = logprobs
        self._rows_with_logprobs = rows_with_logprobs

    def read(self) -> tuple[npt.NDArray[np.int64], dict[int, TokenLogprobs]]:
        """Wait for each row's token (NO_TOKEN or BROKEN_ROW if there is none) and the log-probabilities by row."""
        [tokens] = self._download.read()
        logprobs = [] if self._logprobs is None else self._logprobs.read()
        return tokens, dict(zip(self._rows_with_logprobs, logprobs, strict=True))


def sample(logits: Tensor, rows: SamplingRows) -> Samples:
    """Draw a token for each row of `[rows, vocab]` logits in any float dtype, which may be overwritten.

    The log-probabilities are of the raw distribution: before edits, masks, temperature and filters.
    """
    wants_logprobs = np.flatnonzero(rows.num_logprobs >= 0)
    raw = logits.index_select(0, _index(wants_logprobs, logits)).float() if wants_logprobs.size else None
    tokens = _choose(logits, rows)
    if raw is None:
        return Samples(tokens, None, [])
    known = tokens[_index(wants_logprobs, logits)].clamp(min=0)  # rows without a token report none
    logprobs = LogprobRows(raw, known, rows.num_logprobs[wants_logprobs].tolist())
    return Samples(tokens, logprobs, wants_logprobs.tolist())


def _choose(logits: Tensor, rows: SamplingRows) -> Tensor:
    best = best_tokens(logits)
    if rows.masks is None and rows.edits is None:
        return _with_draws(best, logits, rows, None)
    tokens = _best_left(logits, rows, best)
    shifted = None if rows.edits is None else rows.edits.shift(logits)
    if shifted is not None:
        tokens = tokens.index_copy(0, _index(shifted.rows, logits), best_tokens(shifted.logits))
    chosen = _with_draws(tokens, logits, rows, shifted)
    # If a row had a largest number before, and has none now, every token is forbidden.
    return torch.where(best == BROKEN_ROW, BROKEN_ROW, chosen.clamp(min=NO_TOKEN))


def _best_left(logits: Tensor, rows: SamplingRows, best: Tensor) -> Tensor:
    """Apply masks and edits; return each row's most likely token of the remaining ones."""
    if rows.masks is not None:
        rows.masks.apply(logits)
    if rows.edits is not None:
        rows.edits.forbid(logits)
    has_forbidden = rows.masks is not None or (rows.edits is not None and rows.edits.forbids)
    return best_tokens(logits) if has_forbidden else best.clone()


def _with_draws(tokens: Tensor, logits: Tensor, rows: SamplingRows, shifted: Shifted | None) -> Tensor:
    """Return the most likely `tokens`, overwritten with drawn ones in random rows; None if there are none."""
    random = np.flatnonzero(~rows.is_greedy)
    if random.size and not logits.is_cuda:
        is_plain = (rows.top_k[random] == 0) & (rows.top_p[random] >= 1.0) & (rows.min_p[random] == 0.0)
        plain, random = random[is_plain], random[~is_plain]
        if plain.size:
            tokens[_index(plain, logits)] = _draw_plain(logits, rows, plain, shifted)
    if random.size:
        index = _index(random, logits)
        picked = logits.index_select(0, index).float()
        if shifted is not None:
            shifted.write_over(picked, random)
        likeliest = tokens.index_select(0, index)
        drawn = _draw(picked, rows, random)
        is_kept = likeliest < 0
        if rows.masks is not None or rows.edits is not None:
            # Rounding in a parallel cumulative sum can put a draw on a token of weight zero, once in millions.
            is_kept |= picked.gather(-1, drawn[:, None])[:, 0] == -torch.inf
        tokens[index] = torch.where(is_kept, likeliest, drawn)
    return tokens


def _draw_plain(logits: Tensor, rows: SamplingRows, picked: npt.NDArray[np.int64], shifted: Shifted | None) -> Tensor:
    """Return a random token for each picked row, none of which has a filter."""
    source = picked
    if shifted is not None:
        logits = logits.index_select(0, _index(picked, logits)).float()
        shifted.write_over(logits, picked)
        source = np.arange(len(picked))
    temperature, draws = rows.temperature[picked], uniforms(rows.seeds[picked], rows.positions[picked])
    return draw_from_logits(logits, *map(torch.from_numpy, (source, temperature, draws)))


def _draw(logits: Tensor, rows: SamplingRows, picked: npt.NDArray[np.int64]) -> Tensor:
    """Return a random token for each picked row; `logits` `[len(picked), vocab]` fp32 may be overwritten."""
    device = logits.device
    temperature = upload(rows.temperature[picked], device)
    probabilities = logits.div_(temperature[:, None]).softmax(dim=-1)
    min_p = rows.min_p[picked]
    if min_p.any():
        floor = upload(min_p, device) * probabilities.amax(dim=-1)
        probabilities.masked_fill_(probabilities < floor[:, None], 0.0)
    draws = upload(uniforms(rows.seeds[picked], rows.positions[picked]), device)
    if logits.is_cuda:
        top_k, top_p = upload(rows.top_k[picked], device), upload(rows.top_p[picked], device)
        return draw_tokens(probabilities, draws, top_k=top_k, top_p=top_p)
    return _draw_by_widths(probabilities, draws, rows, picked)


def _draw_by_widths(probabilities: Tensor, draws: Tensor, rows: SamplingRows, picked: npt.NDArray[np.int64]) -> Tensor:
    """Do what `draw_tokens` does, faster on a CPU: sort as few candidates as possible, and none without a filter."""
    has_filter = (rows.top_k[picked] > 0) | (rows.top_p[picked] < 1.0)
    tokens = torch.empty(len(picked), dtype=torch.int64)
    plain = np.flatnonzero(~has_filter)
    if plain.size:
        index = torch.from_numpy(plain)
        tokens[index] = _inverse(probabilities[index], draws[index])
    for width in _widths(rows, picked, has_filter, vocab=probabilities.shape[-1]):
        index = torch.from_numpy(width.members)
        tokens[index] = _draw_filtered(
            probabilities[index],
            draws[index],
            top_k=torch.from_numpy(rows.top_k[picked[width.members]]),
            top_p=torch.from_numpy(rows.top_p[picked[width.members]]),
            width=width.size,
        )
    return tokens


@dataclass(frozen=True, slots=True)
class _Width:
    size: int
    members: npt.NDArray[np.int64]


def _widths(
    rows: SamplingRows, picked: npt.NDArray[np.int64], has_filter: npt.NDArray[np.bool_], *, vocab: int
) -> list[_Width]:
    """Group filtered rows by the number of candidates to search first, a function of each row's own parameters."""
    top_k = rows.top_k[picked]
    widths = np.where(top_k > 0, 1 << np.ceil(np.log2(np.maximum(top_k, 64))).astype(np.int64), _FIRST_CANDIDATES)
    widths = np.minimum(widths, vocab)
    return [_Width(int(size), np.flatnonzero(has_filter & (widths == size))) for size in np.unique(widths[has_filter])]


def _draw_filtered(probabilities: Tensor, draws: Tensor, *, top_k: Tensor, top_p: Tensor, width: int) -> Tensor:
    """Draw among each row's most likely tokens: top-k first, then top-p of the rest."""
    best, token_ids = probabilities.topk(width, dim=-1)
    ranks = torch.arange(width, device=best.device)
    has_k = top_k[:, None] > 0
    best = best.masked_fill(has_k & (ranks >= top_k[:, None]), 0.0)
    mass = torch.where(has_k[:, 0], best.sum(dim=-1), probabilities.sum(dim=-1))
    before = best.cumsum(dim=-1) - best
    is_short = ~has_k[:, 0] & (before[:, -1] + best[:, -1] < top_p * mass) & (width < probabilities.shape[-1])
    is_past = (before >= top_p[:, None] * mass[:, None]) & (ranks > 0)  # a tiny top_p is 0 in fp32
    kept = best.masked_fill(is_past, 0.0)
    token_ids, order = token_ids.sort(dim=-1)  # the same order as in `draw_tokens`
    tokens = token_ids.gather(-1, _inverse(kept.gather(-1, order), draws)[:, None])[:, 0]
    if bool(is_short.any()):  # top-p reaches past the candidates: search all tokens
        short = is_short.nonzero()[:, 0]
        tokens[short] = _draw_filtered(
            probabilities[short], draws[short], top_k=top_k[short], top_p=top_p[short], width=probabilities.shape[-1]
        )
    return tokens


def _inverse(weights: Tensor, draws: Tensor) -> Tensor:
    """Return the first column at which the cumulative weight passes draw · total; never one of weight zero."""
    cumulative = weights.cumsum(dim=-1)
    targets = (draws * cumulative[:, -1])[:, None].contiguous()
    return torch.searchsorted(cumulative, targets, right=True)[:, 0].clamp_(max=weights.shape[-1] - 1)


def _index(rows: npt.NDArray[np.int64], like: Tensor) -> Tensor:
    return upload(rows, like.device)
