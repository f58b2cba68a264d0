"""Write a model of transformers as llama.cpp's converter does, value by value."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.engine.gguf.builders import StoredTensor, Written, f32

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def gguf_name(name: str) -> str:
    base, _, kind = name.rpartition(".")
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", base)
    return f"blk.{layer[1]}.{NAMES[layer[2]]}.{kind}" if layer else f"{NAMES[base]}.{kind}"


def written_as_gguf(model: Any, *, kind: str = "F32", rope_factors: list[float] | None = None) -> Written:
    """Return a file with the weights of a Llama, Qwen2 or Qwen3, matrices as `kind`."""
    config = model.config
    arch = config.model_type
    written = Written(metadata={"general.architecture": arch, **settings_of(config)})
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if arch == "llama" and re.search(r"[qk]_proj", name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            placed = in_pairs(tensor, heads)
        else:
            placed = tensor
        written.tensors[gguf_name(name)] = stored(placed, kind if tensor.ndim == 2 else "F32")
    if rope_factors is not None:
        written.tensors["rope_freqs.weight"] = f32((len(rope_factors),), rope_factors)
    return written


def settings_of(config: Any) -> dict[str, Any]:
    rope = config.rope_parameters
    given = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(rope["rope_theta"]),
    }
    if config.model_type == "qwen3":
        given |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    if rope["rope_type"] in ("linear", "yarn"):
        given |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
    if rope["rope_type"] == "yarn":
        given["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return {f"{config.model_type}.{name}": value for name, value in given.items()}


def in_pairs(tensor: Tensor, heads: int) -> Tensor:
    """Put row i of a head's first half before row i of its second half."""
    moved, size = torch.empty_like(tensor), tensor.shape[0] // heads
    for head in range(heads):
        for row in range(size):
            place = 2 * row if row < size // 2 else 2 * (row - size // 2) + 1
            moved[head * size + place] = tensor[head * size + row]
    return moved


def stored(tensor: Tensor, kind: str) -> StoredTensor:
    if kind == "Q8_0":
        return StoredTensor(kind=kind, shape=tuple(tensor.shape), data=q8_0(tensor))
    return f32(tuple(tensor.shape), tensor.flatten().tolist())


def q8_0(tensor: Tensor) -> bytes:
    """Write 32 values as a scale in fp16 and 32 bytes."""
    data = b""
    for block in tensor.reshape(-1, 32).tolist():
        scale = float(np.float16(max(map(abs, block)) / 127)) or 1.0  # a row of zeros
        data += struct.pack("<e32b", scale, *(max(-127, min(127, round(value / scale))) for value in block))
    return data


def as_q8_0(tensor: Tensor) -> Tensor:
    """Return the values that `q8_0` encodes."""
    data, values = q8_0(tensor), []
    for start in range(0, len(data), 34):
        scale, *numbers = struct.unpack_from("<e32b", data, start)
        values += [scale * number for number in numbers]
    return torch.tensor(values).view(tensor.shape)


def save(written: Written, folder: Path) -> Path:
    return written.to(folder / "tiny.gguf")
