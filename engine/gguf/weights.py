"""Give the tensors of a GGUF file under the names, and in the order of rows, that transformers has for them.

Knows llama.cpp's names (gguf-py's tensor_mapping.py); the container and the blocks are read by others.
"""

from __future__ import annotations

import re

from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.gguf.container import GgufFile
from engine.gguf.dequantize import read_tensor

ROPE_FACTORS = "rope_freqs.weight"
"""What each frequency is divided by; a part of the configuration."""

_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)")


class GgufWeights:
    """The weights of an open file, by transformers' names. Raises UnsupportedModelError for one without a place."""

    def __init__(self, file: GgufFile, *, num_paired_heads: int | None, num_paired_kv_heads: int | None) -> None:
        """Take an open file. Where numbers of heads are given, its queries and keys lie in pairs (`_unpaired`)."""
        self._file = file
        self._heads = {"attn_q": num_paired_heads, "attn_k": num_paired_kv_heads}
        self._stored = {_name_of(name, file): name for name in file.tensors if name != ROPE_FACTORS}
        self.names = list(self._stored)

    def read(self, name: str) -> Tensor:
        """Return a tensor that is in it, on the CPU, in fp32 where it is quantized."""
        stored = self._stored[name]
        tensor = read_tensor(self._file, stored)
        num_heads = self._heads.get(stored.split(".")[-2])
        return tensor if num_heads is None else _unpaired(tensor, num_heads)


def _unpaired(tensor: Tensor, num_heads: int) -> Tensor:
    """Return the rows of each head with the halves that are rotated together one after the other, as transformers does.

    llama.cpp rotates each row of an architecture like `llama` with the next one, and its converter moves them there.
    """
    pairs = tensor.view(num_heads, -1, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def _name_of(stored: str, file: GgufFile) -> str:
    base, _, kind = stored.rpartition(".")
    in_layer = _LAYER.fullmatch(base)
    name = None
    if in_layer is not None and in_layer[2] in _IN_LAYER:
        name = f"model.layers.{int(in_layer[1])}.{_IN_LAYER[in_layer[2]]}"
    elif base in _OUTSIDE:
        name = _OUTSIDE[base]
    if name is None or kind not in ("weight", "bias"):
        raise UnsupportedModelError(f"{file.path} has a tensor {stored}, which our engine's decoder has no place for.")
    return f"{name}.{kind}"
