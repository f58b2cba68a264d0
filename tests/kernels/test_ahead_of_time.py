"""Compile every Triton kernel for sm_80 and sm_90, as the host functions launch it; this needs no GPU.

That of packed weights is compiled for sm_100, too. A recorder stands in for each kernel, so what is compiled is what
the host function would have launched: the dtypes, the constants, the warps and stages, and the same facts about
divisibility that Triton's launcher would have found.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels.grouped_weight import Layout, filled

pytestmark = [
    pytest.mark.comparison,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed (it needs Linux)"),
]

POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}
SHARED_BYTES = {
    80: 163 * 1024,
    90: 227 * 1024,
    100: 227 * 1024,
}  # per block, CUDA programming guide, table of compute capabilities
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


class Recorder:
    """Replaces a kernel: keeps the arguments of the launch."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.launches: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert all(size > 0 for size in grid)
        return lambda *arguments, **named: self.launches.append((arguments, named))

    def compile(self, capability: int) -> list[Any]:
        """Compile every recorded launch for one GPU generation."""
        return [_compile(self.kernel, arguments, named, capability) for arguments, named in self.launches]


def _compile(kernel: Any, arguments: tuple[Any, ...], named: dict[str, Any], capability: int) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    options = {name: named[name] for name in ("num_warps", "num_stages", "enable_fp_fusion") if name in named}
    constants = {name: number for name, number in named.items() if name not in options}
    signature = dict.fromkeys(constants, "constexpr")
    divisible = {}
    for index, (name, argument) in enumerate(zip(kernel.arg_names, arguments, strict=False)):
        if isinstance(argument, torch.Tensor):
            signature[name] = POINTERS[argument.dtype]
            divisible[index,] = argument.data_ptr() % 16 == 0
        elif isinstance(argument, float):
            signature[name] = "fp32"
        elif argument == 1:
            signature[name], constants[name] = "constexpr", 1
        else:
            signature[name] = "i32"
            divisible[index,] = argument % 16 == 0
    signature = {name: signature[name] for name in kernel.arg_names}
    attributes = {key: [["tt.divisibility", 16]] for key, holds in divisible.items() if holds}
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def check(recorder: Recorder, capability: int, *, launches: int = 1) -> None:
    """Compile, and check the result against the GPU's limits."""
    compiled = recorder.compile(capability)
    assert len(compiled) == launches
    for one in compiled:
        assert len(one.asm["cubin"]) > 0
        assert one.metadata.shared <= SHARED_BYTES[capability]


def record(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> Recorder:
    """Replace a module's kernel by a recorder."""
    recorder = Recorder(getattr(module, name))
    monkeypatch.setattr(module, name, recorder)
    return recorder


@pytest.fixture(params=[80, 90], ids=["sm80", "sm90"])
def capability(request: pytest.FixtureRequest) -> int:
    """The GPU generations to compile for: A100, and H100 or H200."""
    return int(request.param)


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_the_norm_kernels_compile(monkeypatch: pytest.MonkeyPatch, capability: int, dtype: torch.dtype) -> None:
    from kernels import rms_norm

    norm = record(monkeypatch, rms_norm, "_rms_norm_kernel")
    fused = record(monkeypatch, rms_norm, "_add_rms_norm_kernel")
    x, weight = torch.empty(64, 4096, dtype=dtype), torch.empty(4096, dtype=dtype)
    rms_norm.rms_norm_triton(x, weight, eps=1e-5)
    rms_norm.rms_norm_triton(torch.empty(64, 48, 128, dtype=dtype)[:, :32], weight[:128], eps=1e-5)
    rms_norm.add_rms_norm_triton(x, x, weight, eps=1e-5)
    check(norm, capability, launches=2)
    check(fused, capability)


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_the_silu_kernel_compiles(monkeypatch: pytest.MonkeyPatch, capability: int, dtype: torch.dtype) -> None:
    from kernels import silu_mul

    kernel = record(monkeypatch, silu_mul, "_silu_mul_kernel")
    silu_mul.silu_mul_triton(torch.empty(64, 2 * 14336, dtype=dtype))
    check(kernel, capability)


def test_the_drawing_kernel_compiles(monkeypatch: pytest.MonkeyPatch, capability: int) -> None:
    from kernels import draw_tokens

    kernel = record(monkeypatch, draw_tokens, "_draw_kernel")
    for vocab in (151_936, 50_257):
        rows = torch.zeros(64)
        draw_tokens.draw_tokens_triton(torch.zeros(64, vocab), rows, top_k=rows.long(), top_p=rows)
    check(kernel, capability, launches=2)


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
def test_the_token_mask_kernel_compiles(monkeypatch: pytest.MonkeyPatch, capability: int, dtype: torch.dtype) -> None:
    from kernels import token_mask

    kernel = record(monkeypatch, token_mask, "_token_mask_kernel")
    mask, rows = torch.zeros(64, 4748, dtype=torch.int32), torch.arange(64)
    token_mask.apply_token_mask_triton(torch.empty(64, 151_936, dtype=dtype), mask, rows)
    check(kernel, capability)


@pytest.mark.parametrize(("dtype", "rot_dim"), [(BF16, 128), (FP32, 96)])
def test_the_rope_and_cache_kernels_compile(
    monkeypatch: pytest.MonkeyPatch, layer_case: Any, capability: int, dtype: torch.dtype, rot_dim: int
) -> None:
    from kernels import rope, rope_and_write_kv, write_kv

    turn = record(monkeypatch, rope, "_rope_kernel")
    write = record(monkeypatch, write_kv, "_write_kv_kernel")
    both = record(monkeypatch, rope_and_write_kv, "_rope_and_write_kernel")
    case = layer_case([0, 1, -1], heads=32, kv_heads=8, head_dim=128, rot_dim=rot_dim, block_size=16, dtype=dtype)
    rope.rope_triton(case.query, case.key, case.step.positions, case.cos_sin)
    write_kv.write_kv_triton(case.key, case.value, case.cache, case.step.slots)
    rope_and_write_kv.rope_and_write_kv_triton(case.query, case.key, case.value, case.cos_sin, case.cache, case.step)
    for recorder in (turn, write, both):
        check(recorder, capability)


PACKED = [
    Layout(bits=4, scale_bytes=2, has_minima=False),
    Layout(bits=4, scale_bytes=4, has_minima=True, scaled=128),
    Layout(bits=8, scale_bytes=4, has_minima=False, scaled=16),
    Layout(bits=8, scale_bytes=2, has_minima=True, scaled=4096),
]


@pytest.mark.parametrize("packed_capability", [80, 90, 100], ids=["sm80", "sm90", "sm100"])
@pytest.mark.parametrize("layout", PACKED, ids=str)
def test_the_kernel_of_packed_weights_compiles(
    monkeypatch: pytest.MonkeyPatch, packed_capability: int, layout: Layout
) -> None:
    from kernels.gpu import grouped_linear

    kernel = record(monkeypatch, grouped_linear, "_grouped_linear_kernel")
    weight, bias = filled(layout, (512, 4096)), torch.zeros(512, dtype=BF16)
    launched = [(1, BF16), (64, BF16), (300, BF16), (64, FP32)] if layout == PACKED[0] else [(1, FP16), (300, FP16)]
    for rows, dtype in launched:
        x = torch.zeros(rows, 4096, dtype=dtype)
        grouped_linear.grouped_linear_triton(x, weight, bias if dtype is BF16 else None, dtype=dtype)
    check(kernel, packed_capability, launches=len(launched))


# dtype, heads, KV heads, head_dim, window, (query_len, context_len) of the batch
ATTENTION = {
    "decode": (BF16, 32, 8, 128, None, [(1, 100)] * 200),
    "decode-split": (BF16, 32, 8, 128, None, [(1, 4000)]),
    "decode-window": (FP16, 9, 3, 64, 500, [(1, 1000)] * 3),
    "decode-fp32": (FP32, 32, 8, 128, None, [(1, 100)] * 200),
    "prefill": (BF16, 32, 8, 128, None, [(300, 400), (1, 50)]),
    "prefill-group-3": (BF16, 9, 3, 64, None, [(300, 400), (1, 50)]),
    "prefill-fp32": (FP32, 32, 8, 128, None, [(300, 400), (1, 50)]),
    "prefill-head-256": (BF16, 16, 8, 256, 512, [(300, 400), (1, 50)]),
    "piece-of-8": (BF16, 32, 8, 128, None, [(8, 400), (1, 50)]),
}


@pytest.mark.parametrize("batch", ATTENTION)
def test_the_attention_kernels_compile(
    monkeypatch: pytest.MonkeyPatch, attention_case: Any, capability: int, batch: str
) -> None:
    from kernels.gpu import attention as module

    attend = record(monkeypatch, module, "_attention_kernel")
    reduce = record(monkeypatch, module, "_reduce_kernel")
    monkeypatch.setattr(module, "_num_processors", lambda _: 132)
    dtype, heads, kv_heads, head_dim, window, lengths = ATTENTION[batch]
    case = attention_case(
        lengths, heads=heads, kv_heads=kv_heads, head_dim=head_dim, block_size=16, dtype=dtype, window=window
    )
    case.run(module.paged_attention_triton)
    check(attend, capability)
    check(reduce, capability, launches=int(batch == "decode-split"))


# The soft cap, the dtype of the sinks, and the batch: what Gemma 2 (head_dim 256) and gpt-oss (head_dim 64) ask for
LOGITS: dict[str, tuple[float | None, torch.dtype | None, str]] = {
    "cap-decode-split": (50.0, None, "decode-split"),
    "cap-prefill": (50.0, None, "prefill-head-256"),
    "cap-prefill-fp32": (50.0, None, "prefill-fp32"),
    "sinks-decode-split": (None, BF16, "decode-split"),
    "sinks-decode-window": (None, FP16, "decode-window"),
    "sinks-prefill": (None, FP32, "prefill-group-3"),
    "both-decode-split": (50.0, BF16, "decode-split"),
    "both-prefill": (50.0, BF16, "prefill"),
}


@pytest.mark.parametrize("variant", LOGITS)
def test_the_attention_kernels_compile_with_a_cap_and_sinks(
    monkeypatch: pytest.MonkeyPatch, attention_case: Any, capability: int, variant: str
) -> None:
    from kernels.gpu import attention as module

    attend = record(monkeypatch, module, "_attention_kernel")
    reduce = record(monkeypatch, module, "_reduce_kernel")
    monkeypatch.setattr(module, "_num_processors", lambda _: 132)
    soft_cap, sinks_dtype, batch = LOGITS[variant]
    dtype, heads, kv_heads, head_dim, window, lengths = ATTENTION[batch]
    case = attention_case(
        lengths, heads=heads, kv_heads=kv_heads, head_dim=head_dim, block_size=16, dtype=dtype, window=window
    )
    sinks = None if sinks_dtype is None else torch.zeros(heads, dtype=sinks_dtype)
    case.run(module.paged_attention_triton, soft_cap=soft_cap, sinks=sinks)
    check(attend, capability)
    check(reduce, capability, launches=int(batch == "decode-split"))
