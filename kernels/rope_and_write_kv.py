"""RoPE and the KV cache write in one pass over this step's keys, between QKV and attention of a decoder layer.

    rope(query, key, step.positions, cos_sin); write_kv(key, value, cache, step.slots)

Formulas, dtypes and sources: rope.py and write_kv.py. The result equals that of the two ops bit for bit.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton reads the annotations of its kernels, and only tl.constexpr means something to it)

from __future__ import annotations

from torch import Tensor

from kernels.cpu import kv_ops
from kernels.gpu.backend import jit, launch, next_power_of_2, tl
from kernels.paged import LayerCache, PagedStep
from kernels.rope import check_rope, heads_config, load_angles, rope_reference, rotate_heads
from kernels.write_kv import check_write, copy_heads, slot_start, write_kv_reference


def rope_and_write_kv(  # noqa: PLR0917  what it turns, then where it reads and writes
    query: Tensor, key: Tensor, value: Tensor, cos_sin: Tensor, cache: LayerCache, step: PagedStep
) -> None:
    """Rotate `query` and `key` in place, then store the rotated key and the value at their slots.

    Shapes, limits and errors are those of `rope` and `write_kv`; a token with slot −1 is rotated and not stored.
    """
    check_rope(query, key, step.positions, cos_sin)
    check_write(key, value, cache, step.slots)
    if query.is_cuda:
        run = rope_and_write_kv_triton
    elif query.is_cpu and query.dtype in kv_ops.DTYPES and cache.keys.dtype in kv_ops.DTYPES:
        run = kv_ops.rope_and_write_kv
    else:
        run = rope_and_write_kv_reference
    run(query, key, value, cos_sin, cache, step)


def rope_and_write_kv_reference(  # noqa: PLR0917  the same arguments as the op
    query: Tensor, key: Tensor, value: Tensor, cos_sin: Tensor, cache: LayerCache, step: PagedStep
) -> None:
    """Compute `rope_and_write_kv` in plain PyTorch."""
    rope_reference(query, key, step.positions, cos_sin)
    write_kv_reference(key, value, cache, step.slots)


def rope_and_write_kv_triton(  # noqa: PLR0917  the same arguments as the op
    query: Tensor, key: Tensor, value: Tensor, cos_sin: Tensor, cache: LayerCache, step: PagedStep
) -> None:
    """Launch the Triton kernel of `rope_and_write_kv`; the arguments are already checked."""
    tokens, heads, head_dim = query.shape
    kv_heads, half = key.shape[1], cos_sin.shape[1] // 2
    if tokens:
        launch(_rope_and_write_kernel, (tokens,))(
            query, key, value, step.positions, cos_sin, cache.keys, cache.values, step.slots,
            query.stride(0), query.stride(1), key.stride(0), key.stride(1), value.stride(0), value.stride(1),
            HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, HALF=half, BLOCK_SIZE=cache.keys.shape[2],
            D_BLOCK=next_power_of_2(head_dim), **heads_config(heads, kv_heads, half),
        )  # fmt: skip


@jit
def _rope_and_write_kernel(  # noqa: PLR0917  a kernel's arguments are positional
    query, key, value, positions, cos_sin, key_cache, value_cache, slots,
    query_stride, query_head_stride, key_stride, key_head_stride, value_stride, value_head_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    D_BLOCK: tl.constexpr, Q_BLOCK: tl.constexpr, K_BLOCK: tl.constexpr, HALF_BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    is_live = slot >= 0
    start = slot_start(slot, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
    between: tl.constexpr = BLOCK_SIZE * HEAD_DIM
    copy_heads(
        value + token * value_stride, value_head_stride, value_cache + start, between, is_live, 0,
        KV_HEADS, HEAD_DIM, K_BLOCK, D_BLOCK,
    )  # fmt: skip
    if HEAD_DIM > 2 * HALF:  # partial rotation: the rest of the key is stored as it is
        copy_heads(
            key + token * key_stride, key_head_stride, key_cache + start, between, is_live, 2 * HALF,
            KV_HEADS, HEAD_DIM, K_BLOCK, D_BLOCK,
        )  # fmt: skip
    cos, sin = load_angles(positions, cos_sin, token, HALF, HALF_BLOCK)
    rotate_heads(query + token * query_stride, query_head_stride, cos, sin, HEADS, HALF, Q_BLOCK, HALF_BLOCK)
    first, second = rotate_heads(
        key + token * key_stride, key_head_stride, cos, sin, KV_HEADS, HALF, K_BLOCK, HALF_BLOCK
    )
    # From registers: reading the key back would race with the other threads' stores.
    heads, lanes = tl.arange(0, K_BLOCK)[:, None], tl.arange(0, HALF_BLOCK)[None, :]
    mask = (heads < KV_HEADS) & (lanes < tl.where(is_live, HALF, 0))
    pointers = key_cache + start + heads * between + lanes
    tl.store(pointers, first.to(key_cache.dtype.element_ty), mask=mask)
    tl.store(pointers + HALF, second.to(key_cache.dtype.element_ty), mask=mask)
