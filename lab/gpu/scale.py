"""Sizes of the measurements: those of real models, and tiny ones to try the code on any machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lab.gpu.roofline import H200, DeviceLimits
from lab.make_model import OPT_13B, SHAPES, OptShape, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests of random tokens with uniform prompt and output lengths in closed ranges, and settings."""

    count: int
    prompt: tuple[int, int]
    output: tuple[int, int]
    max_num_seqs: int
    max_num_batched_tokens: int

    def cut(self, fraction: float) -> Load:
        """Return the load with this fraction of its requests, at least one."""
        return replace(self, count=max(1, round(self.count * fraction)))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyLoad:
    """Requests whose output lengths are Pareto(1) within a range, for batches of `max_num_seqs`."""

    count: int
    prompt: tuple[int, int]
    output: tuple[int, int]
    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Every size of every section."""

    name: str
    needs_cuda: bool
    """A CPU would take far too long."""
    limits: DeviceLimits
    llama: Shape
    qwen: Shape
    opt: OptShape
    copy_bytes: int
    product_size: int
    attention_heads: tuple[tuple[int, int], ...]
    attention_batch: int
    attention_contexts: tuple[int, ...]
    step_batch: int
    step_context: int
    num_steps: int
    long: Load
    longest: Load
    prompts: Load
    small_model: Load
    against: Load
    heavy: HeavyLoad
    heavy_opt: HeavyLoad


FULL = Scale(
    name="full",
    needs_cuda=True,
    limits=H200,
    llama=SHAPES["llama-8b"],
    qwen=SHAPES["qwen3-0.6b"],
    opt=OPT_13B,
    copy_bytes=4 * 2**30,
    product_size=8192,
    attention_heads=((32, 8), (64, 8)),
    attention_batch=256,
    attention_contexts=(1024, 4096, 16384),
    step_batch=256,
    step_context=1024,
    num_steps=32,
    long=Load(count=256, prompt=(1000, 1000), output=(1000, 1000), max_num_seqs=256, max_num_batched_tokens=8192),
    longest=Load(count=1024, prompt=(500, 500), output=(2000, 2000), max_num_seqs=1024, max_num_batched_tokens=16384),
    prompts=Load(count=1024, prompt=(2048, 2048), output=(128, 128), max_num_seqs=1024, max_num_batched_tokens=16384),
    small_model=Load(count=256, prompt=(100, 1024), output=(100, 1024), max_num_seqs=256, max_num_batched_tokens=16384),
    against=Load(count=256, prompt=(500, 500), output=(250, 250), max_num_seqs=256, max_num_batched_tokens=8192),
    heavy=HeavyLoad(count=256, prompt=(16, 64), output=(16, 1024), max_num_seqs=64, max_num_batched_tokens=8192),
    heavy_opt=HeavyLoad(count=256, prompt=(16, 64), output=(16, 512), max_num_seqs=64, max_num_batched_tokens=8192),
)

_TINY = Load(count=5, prompt=(9, 9), output=(6, 6), max_num_seqs=4, max_num_batched_tokens=16)
_TINY_HEAVY = HeavyLoad(count=6, prompt=(4, 8), output=(2, 12), max_num_seqs=2, max_num_batched_tokens=16)


def _tiny(shape: Shape) -> Shape:
    return replace(
        shape,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=48,
        vocab_size=128,
    )


SMALL = Scale(
    name="small",
    needs_cuda=False,
    limits=H200,
    llama=_tiny(SHAPES["llama-8b"]),
    qwen=_tiny(SHAPES["qwen3-0.6b"]),
    opt=replace(
        OPT_13B,
        hidden_size=32,
        word_embed_proj_dim=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=64,
        vocab_size=128,
    ),
    copy_bytes=2**20,
    product_size=64,
    attention_heads=((4, 2), (8, 1)),
    attention_batch=3,
    attention_contexts=(17, 40),
    step_batch=4,
    step_context=24,
    num_steps=3,
    long=_TINY,
    longest=replace(_TINY, output=(9, 9)),
    prompts=replace(_TINY, prompt=(20, 20), output=(2, 2)),
    small_model=replace(_TINY, prompt=(3, 12), output=(3, 12)),
    against=_TINY,
    heavy=_TINY_HEAVY,
    heavy_opt=_TINY_HEAVY,
)

SCALES = {scale.name: scale for scale in (FULL, SMALL)}
