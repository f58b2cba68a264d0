"""Write a model directory with random weights from a shape and a seed, for measurements; it says nothing sensible.

python -m benchmarks.make_model OUT --shape S --seed 0
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a Llama, under the names of its config.json."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool
    max_position_embeddings: int = 2048


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
    # 9M parameters: the scheduler and the Python time per step decide
    "T": Shape(
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=768,
        vocab_size=8192,
        tie_word_embeddings=True,
    ),
}


def make_model(path: Path, shape: Shape, *, seed: int, dtype: str = "bfloat16") -> Path:
    """Write config.json and model.safetensors and return the directory. The same seed gives the same bytes."""
    path.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": dtype,
        **asdict(shape),
    }
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(_weights(shape, seed, _DTYPES[dtype]), path / "model.safetensors", metadata={"format": "pt"})
    return path


def _weights(shape: Shape, seed: int, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def random(*size: int) -> Tensor:
        return (torch.randn(*size, generator=generator) * 0.02).to(dtype)

    hidden, ffn = shape.hidden_size, shape.intermediate_size
    keys = hidden // shape.num_attention_heads * shape.num_key_value_heads
    weights = {
        "model.embed_tokens.weight": random(shape.vocab_size, hidden),
        "model.norm.weight": torch.ones(hidden, dtype=dtype),
    }
    if not shape.tie_word_embeddings:
        weights["lm_head.weight"] = random(shape.vocab_size, hidden)
    for layer in range(shape.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        weights |= {
            f"{prefix}.self_attn.q_proj.weight": random(hidden, hidden),
            f"{prefix}.self_attn.k_proj.weight": random(keys, hidden),
            f"{prefix}.self_attn.v_proj.weight": random(keys, hidden),
            f"{prefix}.self_attn.o_proj.weight": random(hidden, hidden),
            f"{prefix}.mlp.gate_proj.weight": random(ffn, hidden),
            f"{prefix}.mlp.up_proj.weight": random(ffn, hidden),
            f"{prefix}.mlp.down_proj.weight": random(hidden, ffn),
            f"{prefix}.input_layernorm.weight": torch.ones(hidden, dtype=dtype),
            f"{prefix}.post_attention_layernorm.weight": torch.ones(hidden, dtype=dtype),
        }
    return weights


def main() -> None:
    """Read the command line and write the model."""
    parser = argparse.ArgumentParser(description="Write a model directory with random weights.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="S")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=sorted(_DTYPES), default="bfloat16")
    arguments = parser.parse_args()
    print(make_model(arguments.out, SHAPES[arguments.shape], seed=arguments.seed, dtype=arguments.dtype))


if __name__ == "__main__":
    main()
