"""Write a model directory for measurements, with random weights of a shape and a seed or with those of a GGUF file.

python -m lab.make_model OUT --shape S --seed 0     (its output is noise)
python -m lab.make_model OUT --weights FILE.gguf    (in bf16, with the file's tokenizer)
python -m lab.make_model OUT --shape llama-8b --config-only   (for an engine with load_format "random")
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.errors import EngineError
from engine.gguf.config import read_config
from engine.gguf.container import GgufFile
from engine.models.weights import Checkpoint
from engine.tokenizer import load_tokenizer

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a Llama or a Qwen3, under the names of its config.json."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool
    max_position_embeddings: int = 8192
    head_dim: int | None = None
    """None means hidden_size ÷ heads."""
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    model_type: str = "llama"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptShape:
    """The sizes of an OPT, under the names of its config.json; only an engine makes its weights."""

    hidden_size: int
    word_embed_proj_dim: int
    num_hidden_layers: int
    num_attention_heads: int
    ffn_dim: int
    vocab_size: int
    max_position_embeddings: int


SHAPES = {
    # 135M parameters, the shape of SmolLM-135M
    "S": Shape(
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        vocab_size=49152,
        tie_word_embeddings=True,
    ),
    # 7M parameters: the scheduler and the Python time per step dominate
    "T": Shape(
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=768,
        vocab_size=8192,
        tie_word_embeddings=True,
    ),
    # 352M parameters, heads of 64
    "M": Shape(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=8,
        intermediate_size=3072,
        vocab_size=49152,
        tie_word_embeddings=True,
    ),
    # 491M parameters: the layers of Qwen3-0.6B, heads of 128 with their own norms, and the vocabulary of S
    "Q": Shape(
        hidden_size=1024,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        intermediate_size=3072,
        vocab_size=49152,
        tie_word_embeddings=True,
        head_dim=128,
        rms_norm_eps=1e-6,
        rope_theta=1000000.0,
        model_type="qwen3",
    ),
    # 8.0B parameters, the sizes of Llama-3.1-8B (without its scaled rotary embedding, which costs no time in a step)
    "llama-8b": Shape(
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14336,
        vocab_size=128256,
        tie_word_embeddings=False,
        max_position_embeddings=131072,
        rope_theta=500000.0,
    ),
    # 0.6B parameters, the sizes of Qwen3-0.6B
    "qwen3-0.6b": Shape(
        hidden_size=1024,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        intermediate_size=3072,
        vocab_size=151936,
        tie_word_embeddings=True,
        max_position_embeddings=40960,
        head_dim=128,
        rms_norm_eps=1e-6,
        rope_theta=1000000.0,
        model_type="qwen3",
    ),
}

# 12.9B parameters, the sizes of OPT-13B
OPT_13B = OptShape(
    hidden_size=5120,
    word_embed_proj_dim=5120,
    num_hidden_layers=40,
    num_attention_heads=40,
    ffn_dim=20480,
    vocab_size=50272,
    max_position_embeddings=2048,
)

_CLASSES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def make_model(path: Path, shape: Shape, *, seed: int, dtype: str = "bfloat16") -> Path:
    """Write config.json and model.safetensors and return the directory. The same seed gives the same bytes."""
    write_config(path, shape, dtype=dtype)
    save_file(_weights(shape, seed, _DTYPES[dtype]), path / "model.safetensors", metadata={"format": "pt"})
    return path


def copy_model(path: Path, file: Path) -> Path:
    """Write the model of a GGUF file as a directory that every engine reads, in bf16; return the directory.

    Raises ModelLoadError or UnsupportedModelError.
    """
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({**read_config(GgufFile(file)), "dtype": "bfloat16"}, indent=2) + "\n")
    with Checkpoint(file, dtype=torch.bfloat16) as checkpoint:
        weights = {name: tensor[...].to(torch.bfloat16).contiguous() for name, tensor in checkpoint.tensors().items()}
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    tokenizer = load_tokenizer(file)
    if tokenizer is not None:
        tokenizer.save_pretrained(path)
    return path


def write_config(path: Path, shape: Shape | OptShape, *, dtype: str = "bfloat16") -> Path:
    """Write only config.json and return the directory."""
    path.mkdir(parents=True, exist_ok=True)
    config = _llama_config(shape) if isinstance(shape, Shape) else _opt_config(shape)
    (path / "config.json").write_text(json.dumps({**config, "dtype": dtype}, indent=2) + "\n")
    return path


def _llama_config(shape: Shape) -> dict[str, Any]:
    sizes = asdict(shape)
    rope_theta = sizes.pop("rope_theta")
    return {
        "architectures": [_CLASSES[shape.model_type]],
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},
        "bos_token_id": 1,
        "eos_token_id": 2,
        **{name: value for name, value in sizes.items() if value is not None},
    }


def _opt_config(shape: OptShape) -> dict[str, Any]:
    return {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "activation_function": "relu",
        "do_layer_norm_before": True,
        "pad_token_id": 1,
        "bos_token_id": 2,
        "eos_token_id": 2,
        **asdict(shape),
    }


def _weights(shape: Shape, seed: int, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def random(*size: int) -> Tensor:
        return (torch.randn(*size, generator=generator) * 0.02).to(dtype)

    hidden, ffn = shape.hidden_size, shape.intermediate_size
    head_dim = shape.head_dim or hidden // shape.num_attention_heads
    queries, keys = head_dim * shape.num_attention_heads, head_dim * shape.num_key_value_heads
    weights = {
        "model.embed_tokens.weight": random(shape.vocab_size, hidden),
        "model.norm.weight": torch.ones(hidden, dtype=dtype),
    }
    if not shape.tie_word_embeddings:
        weights["lm_head.weight"] = random(shape.vocab_size, hidden)
    for layer in range(shape.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        weights |= {
            f"{prefix}.self_attn.q_proj.weight": random(queries, hidden),
            f"{prefix}.self_attn.k_proj.weight": random(keys, hidden),
            f"{prefix}.self_attn.v_proj.weight": random(keys, hidden),
            f"{prefix}.self_attn.o_proj.weight": random(hidden, queries),
            f"{prefix}.mlp.gate_proj.weight": random(ffn, hidden),
            f"{prefix}.mlp.up_proj.weight": random(ffn, hidden),
            f"{prefix}.mlp.down_proj.weight": random(hidden, ffn),
            f"{prefix}.input_layernorm.weight": torch.ones(hidden, dtype=dtype),
            f"{prefix}.post_attention_layernorm.weight": torch.ones(hidden, dtype=dtype),
        }
        if shape.model_type == "qwen3":
            weights |= {f"{prefix}.self_attn.{name}_norm.weight": torch.ones(head_dim, dtype=dtype) for name in "qk"}
    return weights


def main(argv: list[str] | None = None) -> int:
    """Read the command line and write the model; return the exit code."""
    parser = argparse.ArgumentParser(description="Write a model directory with random weights.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="S")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=sorted(_DTYPES), default="bfloat16")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--config-only", action="store_true", help="write config.json and no weights")
    what.add_argument("--weights", type=Path, metavar="FILE.gguf", help="use these weights instead of random ones")
    arguments = parser.parse_args(argv)
    try:
        print(_write(arguments))
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _write(arguments: argparse.Namespace) -> Path:
    if arguments.weights is not None:
        return copy_model(arguments.out, arguments.weights)
    shape = SHAPES[arguments.shape]
    if arguments.config_only:
        return write_config(arguments.out, shape, dtype=arguments.dtype)
    return make_model(arguments.out, shape, seed=arguments.seed, dtype=arguments.dtype)


if __name__ == "__main__":
    raise SystemExit(main())
