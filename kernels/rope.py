"""Rotary position embedding, in place, in the "NeoX" layout (first half pairs with second half).

    (a, b) → (a·cos − b·sin, b·cos + a·sin)    a = head[:rot/2], b = head[rot/2:rot]; the rest of the head is untouched

Accumulation: fp32, rounded once on the way out. Angles are passed as a table, so the caller decides about rope scaling.
Source: Su et al. 2021 (arXiv 2104.09864), equation 34.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton reads the annotations of its kernels, and only tl.constexpr means something to it)

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu import kv_ops
from kernels.errors import require
from kernels.gpu.backend import jit, launch, next_power_of_2, tl


def rope(query: Tensor, key: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """Rotate `query` and `key` in place by the angles of their positions.

    Shapes: query `[tokens, heads, head_dim]`, key `[tokens, kv_heads, head_dim]` (slices of a merged QKV row are
    fine: only the last axis must be contiguous), positions `[tokens]` int64, cos_sin `[max_position, rot_dim]` fp32:
    rot_dim/2 cosines, then rot_dim/2 sines; rot_dim ≤ head_dim. Raises `KernelInputError`; on the CPU also for a
    position outside the table (on a GPU that would need a sync).
    """
    check_rope(query, key, positions, cos_sin)
    if query.is_cuda:
        rope_triton(query, key, positions, cos_sin)
    elif query.is_cpu and query.dtype in kv_ops.DTYPES:
        kv_ops.rope(query, key, positions, cos_sin)
    else:
        rope_reference(query, key, positions, cos_sin)


def check_rope(query: Tensor, key: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """Raise `KernelInputError` for tensors that `rope` does not accept."""
    tokens, _, head_dim = query.shape
    rot_dim = cos_sin.shape[1]
    if (
        key.shape[0] == tokens == positions.shape[0]
        and key.shape[2] == head_dim
        and query.stride(2) == key.stride(2) == positions.stride(0) == 1
        and query.dtype == key.dtype
        and rot_dim <= head_dim
        and rot_dim % 2 == 0
        and positions.dtype == torch.int64
        and cos_sin.dtype == torch.float32
        and cos_sin.is_contiguous()
    ):
        return
    require(
        False,
        f"query {query.dtype} {tuple(query.shape)} strides {query.stride()}, key {key.dtype} {tuple(key.shape)} "
        f"strides {key.stride()}, positions {positions.dtype} {tuple(positions.shape)}, cos_sin {cos_sin.dtype} "
        f"{tuple(cos_sin.shape)}; give [tokens, heads, head_dim] twice in one dtype with a contiguous last axis, "
        "contiguous int64 positions [tokens], and a contiguous float32 table [max_position, even rot_dim <= head_dim]",
    )


def rope_reference(query: Tensor, key: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """Compute `rope` in plain PyTorch."""
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    half = cos.shape[-1]
    for heads in (query, key):
        first, second = heads[..., :half].float(), heads[..., half : 2 * half].float()
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        heads[..., : 2 * half] = rotated.to(heads.dtype)


def heads_config(heads: int, kv_heads: int, half: int) -> dict[str, int]:
    """Pick the tiles of the per-token kernels: all heads of a token at once, 16 elements a thread."""
    q_block, half_block = next_power_of_2(heads), next_power_of_2(half)
    num_warps = min(8, max(1, q_block * half_block // 512))
    return {"Q_BLOCK": q_block, "K_BLOCK": next_power_of_2(kv_heads), "HALF_BLOCK": half_block, "num_warps": num_warps}


def rope_triton(query: Tensor, key: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """Launch the Triton kernel of `rope`; the arguments are already checked."""
    tokens, heads, _ = query.shape
    kv_heads, half = key.shape[1], cos_sin.shape[1] // 2
    if tokens and half:
        launch(_rope_kernel, (tokens,))(
            query, key, positions, cos_sin,
            query.stride(0), query.stride(1), key.stride(0), key.stride(1),
            HEADS=heads, KV_HEADS=kv_heads, HALF=half, **heads_config(heads, kv_heads, half),
        )  # fmt: skip


@jit
def load_angles(positions, cos_sin, token, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr):
    """Load one token's cosines and sines, `[1, HALF_BLOCK]` each."""
    lanes = tl.arange(0, HALF_BLOCK)
    row = cos_sin + tl.load(positions + token) * (2 * HALF) + lanes
    cos = tl.load(row, mask=lanes < HALF, other=0.0)
    sin = tl.load(row + HALF, mask=lanes < HALF, other=0.0)
    return cos[None, :], sin[None, :]


@jit
def rotate_heads(  # noqa: PLR0917  compiled
    start, head_stride, cos, sin,
    HEADS: tl.constexpr, HALF: tl.constexpr, HEAD_BLOCK: tl.constexpr, HALF_BLOCK: tl.constexpr,
):  # fmt: skip
    """Rotate all heads of one token in place; return the two halves as stored, `[HEAD_BLOCK, HALF_BLOCK]` each."""
    heads, lanes = tl.arange(0, HEAD_BLOCK)[:, None], tl.arange(0, HALF_BLOCK)[None, :]
    mask = (heads < HEADS) & (lanes < HALF)
    pointers = start + heads * head_stride + lanes
    first = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(pointers + HALF, mask=mask, other=0.0).to(tl.float32)
    new_first = (first * cos - second * sin).to(start.dtype.element_ty)
    new_second = (second * cos + first * sin).to(start.dtype.element_ty)
    tl.store(pointers, new_first, mask=mask)
    tl.store(pointers + HALF, new_second, mask=mask)
    return new_first, new_second


@jit
def _rope_kernel(  # noqa: PLR0917  a kernel's arguments are positional
    query, key, positions, cos_sin, query_stride, query_head_stride, key_stride, key_head_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr,
    Q_BLOCK: tl.constexpr, K_BLOCK: tl.constexpr, HALF_BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    cos, sin = load_angles(positions, cos_sin, token, HALF, HALF_BLOCK)
    rotate_heads(query + token * query_stride, query_head_stride, cos, sin, HEADS, HALF, Q_BLOCK, HALF_BLOCK)
    rotate_heads(key + token * key_stride, key_head_stride, cos, sin, KV_HEADS, HALF, K_BLOCK, HALF_BLOCK)
