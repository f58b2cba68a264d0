"""Draw a token from each row of probabilities, among its most likely ones.

    kept   = the tokens with fewer than top_k more likely ones (top_k 0: all);
             of these, the ones whose more likely ones have less than top_p of their mass (top_p 1: all)
    token  = the first one at which the kept mass so far, in the vocabulary's order, passes draw · the kept mass

Equally likely tokens are kept or dropped together, and the most likely ones are always kept. Sums in fp32; a row's sum
has one order whatever the other rows. Source: Holtzman et al. 2020 (arXiv 1904.09751), section 3.1.

The kernel sorts nothing and the host reads nothing: a row's least kept probability is found by dividing the range of
its floats' bits, which are ordered like the numbers, into 16 parts, 8 times over. One program handles one row.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton reads the annotations of its kernels, and only tl.constexpr means something to it)

from __future__ import annotations

import torch
from torch import Tensor

from kernels.errors import require
from kernels.gpu.backend import jit, launch, tl

_BLOCK = 1024  # tokens at a time: 64 comparisons for each of 256 threads


def draw_tokens(probabilities: Tensor, draws: Tensor, *, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return `[rows]` int64; a token of probability 0 is drawn only if there is no other, and then it is token 0.

    Shapes: probabilities `[rows, vocab]` fp32, none negative, contiguous, their sum need not be 1; draws `[rows]` fp32
    in [0, 1), top_k `[rows]` int64, top_p `[rows]` fp32, contiguous, all on one device. Raises `KernelInputError`.
    """
    check_rows(probabilities, draws, top_k, top_p)
    draw = draw_tokens_triton if probabilities.is_cuda else draw_tokens_reference
    return draw(probabilities, draws, top_k=top_k, top_p=top_p)


def check_rows(probabilities: Tensor, draws: Tensor, top_k: Tensor, top_p: Tensor) -> None:
    """Raise `KernelInputError` for tensors that `draw_tokens` does not accept."""
    parameters = {"draws": draws, "top_k": top_k, "top_p": top_p}
    is_matrix = probabilities.dim() == 2 and probabilities.is_contiguous() and probabilities.dtype == torch.float32
    require(
        is_matrix,
        f"probabilities are {probabilities.dtype} {tuple(probabilities.shape)} strides {probabilities.stride()}; give "
        "contiguous fp32 [rows, vocab]",
    )
    for name, tensor in parameters.items():
        dtype = torch.int64 if name == "top_k" else torch.float32
        require(
            tensor.shape == probabilities.shape[:1]
            and tensor.dtype == dtype
            and tensor.is_contiguous()
            and tensor.device == probabilities.device,
            f"{name} is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}; give contiguous {dtype} "
            f"[{probabilities.shape[0]}] on {probabilities.device}",
        )


def draw_tokens_reference(probabilities: Tensor, draws: Tensor, *, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Compute `draw_tokens` in plain PyTorch."""
    sorted_, order = probabilities.sort(dim=-1, descending=True)
    columns = torch.arange(sorted_.shape[1], device=sorted_.device).expand_as(sorted_)
    is_new = torch.ones_like(sorted_, dtype=torch.bool)
    is_new[:, 1:] = sorted_[:, 1:] != sorted_[:, :-1]
    num_above = columns.masked_fill(~is_new, 0).cummax(dim=-1).values  # tokens that are more likely
    mass_above = (sorted_.cumsum(dim=-1) - sorted_).gather(-1, num_above)
    is_kept = (top_k[:, None] == 0) | (num_above < top_k[:, None])
    mass = sorted_.masked_fill(~is_kept, 0.0).sum(dim=-1, keepdim=True)
    is_kept &= (top_p[:, None] >= 1.0) | (mass_above < top_p[:, None] * mass) | (num_above == 0)
    kept = torch.zeros_like(probabilities).scatter_(-1, order, sorted_.masked_fill(~is_kept, 0.0))
    cumulative = kept.cumsum(dim=-1)
    passed = (cumulative > draws[:, None] * cumulative[:, -1:]) & (kept > 0.0)
    last = torch.where(kept > 0.0, columns, 0).amax(dim=-1)
    return torch.where(passed.any(dim=-1), passed.int().argmax(dim=-1), last)


def draw_tokens_triton(probabilities: Tensor, draws: Tensor, *, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Launch the Triton kernel of `draw_tokens`; the arguments are already checked."""
    rows, vocab = probabilities.shape
    tokens = torch.zeros(rows, dtype=torch.int64, device=probabilities.device)
    if rows and vocab:
        launch(_draw_kernel, (rows,))(probabilities, draws, top_k, top_p, tokens, vocab, BLOCK=_BLOCK, num_warps=8)
    return tokens


@jit
def _load(row, start, vocab, BLOCK: tl.constexpr):
    """Load a block of a row, zeros past its end."""
    columns = start + tl.arange(0, BLOCK)
    return tl.load(row + columns, mask=columns < vocab, other=0.0)


@jit
def _mass_from(row, vocab, least, BLOCK: tl.constexpr):
    """Add up the probabilities whose bits are at least `least`."""
    mass = 0.0
    for start in range(0, vocab, BLOCK):
        numbers = _load(row, start, vocab, BLOCK)
        mass += tl.sum(tl.where(numbers.to(tl.int32, bitcast=True) >= least, numbers, 0.0))
    return mass


@jit
def _least_kept(row, vocab, highest, limit, COUNTS: tl.constexpr, BLOCK: tl.constexpr):  # noqa: PLR0917  positional
    """Find the least bits of a number that the numbers above it leave under the limit; `highest` where none do.

    The limit is of their count or of their sum. `low` is never under it, `high` is.
    """
    low, high = highest * 0 - 1, highest  # a value, not a constant: the loop carries it
    parts = tl.arange(0, 16)
    for _ in range(8):
        step = (high - low + 15) // 16
        cuts = tl.minimum(low + step * (parts + 1), high)
        above = tl.zeros([16], tl.float32)
        for start in range(0, vocab, BLOCK):
            numbers = _load(row, start, vocab, BLOCK)
            weights = tl.full([BLOCK], 1.0, tl.float32) if COUNTS else numbers
            is_above = numbers.to(tl.int32, bitcast=True)[:, None] > cuts[None, :]
            above += tl.sum(tl.where(is_above, weights[:, None], 0.0), axis=0)
        is_under = above < limit
        low = tl.max(tl.where(is_under, low, cuts))
        high = tl.min(tl.where(is_under, cuts, high))
    return high


@jit
def _draw_kernel(probabilities, draws, top_k, top_p, tokens, vocab, BLOCK: tl.constexpr):  # noqa: PLR0917  positional
    index = tl.program_id(0).to(tl.int64)
    row = probabilities + index * vocab
    mass, highest = 0.0, tl.program_id(0) * 0
    for start in range(0, vocab, BLOCK):
        numbers = _load(row, start, vocab, BLOCK)
        mass += tl.sum(numbers)
        highest = tl.maximum(highest, tl.max(numbers.to(tl.int32, bitcast=True)))
    least = highest * 0
    count = tl.load(top_k + index)
    if count > 0:
        least = _least_kept(row, vocab, highest, count.to(tl.float32), True, BLOCK)
        mass = _mass_from(row, vocab, least, BLOCK)
    share = tl.load(top_p + index)
    if share < 1.0:
        least = tl.maximum(least, _least_kept(row, vocab, highest, share * mass, False, BLOCK))
        mass = _mass_from(row, vocab, least, BLOCK)
    wanted = tl.load(draws + index) * mass
    # Sums of sums round otherwise than one long sum: where none passes, it is the last one that is kept.
    token, last, so_far = highest * 0 + vocab, highest * 0, 0.0
    for start in range(0, vocab, BLOCK):
        numbers = _load(row, start, vocab, BLOCK)
        columns = start + tl.arange(0, BLOCK)
        is_kept = (numbers.to(tl.int32, bitcast=True) >= least) & (numbers > 0.0)
        kept = tl.where(is_kept, numbers, 0.0)
        is_passed = is_kept & (so_far + tl.cumsum(kept, 0) > wanted)
        token = tl.minimum(token, tl.min(tl.where(is_passed, columns, vocab)))
        last = tl.maximum(last, tl.max(tl.where(is_kept, columns, 0)))
        so_far += tl.sum(kept)
    tl.store(tokens + index, tl.where(token < vocab, token, last).to(tl.int64))
